"""What the stored indices of most media files contain: the dictionary that zlib compresses them with.

It is part of the format of `stored_index`: never change it. The note of x265, which it writes into the configuration of
every stream, is as long as the rest of the index of a video of some seconds.
"""

from __future__ import annotations

_X265_NOTE = (
    b"x265 (build 216) - 4.2+1-e444744:[Linux][GCC 14.2.1][64 bit] 8bit+10bit+12bit - H.265/HEVC codec - Copyright "
    b"2013-2018 (c) Multicoreware, Inc - http://x265.org - options: cpuid=1111039 frame-threads=1 wpp no-pmode no- "
    b"pme no-psnr no-ssim log-level=-1 bitdepth=8 input-csp=1 fps=30/1 input-res=1280x720 interlace=0 total-frames=0 "
    b"level-idc=0 high-tier=1 uhd-bd=0 ref=3 no-allow-non-conformance no-repeat-headers annexb no-aud no-eob no-eos "
    b"no-hrd info hash=0 temporal-layers=0 open-gop min-keyint=25 keyint=250 gop-lookahead=0 bframes=4 b-adapt=2 "
    b"b-pyramid bframe-bias=0 rc-lookahead=20 lookahead-slices=4 scenecut=40 no-hist-scenecut radl=0 no-splice no- "
    b"intra-refresh ctu=64 min-cu-size=8 no-rect no-amp max-tu-size=32 tu-inter-depth=1 tu-intra-depth=1 limit-tu=0 "
    b"rdoq-level=0 dynamic-rd=0.00 no-ssim-rd signhide no-tskip nr-intra=0 nr-inter=0 no-constrained-intra strong- "
    b"intra-smoothing max-merge=3 limit-refs=1 no-limit-modes me=1 subme=2 merange=57 temporal-mvp no-frame-dup no- "
    b"hme weightp no-weightb no-analyze-src-pics deblock=0:0 sao no-sao-non-deblock rd=3 selective-sao=4 early-skip "
    b"rskip no-fast-intra no-tskip-fast no-cu-lossless b-intra no-splitrd-skip rdpenalty=0 psy-rd=2.00 psy-rdoq=0.00 "
    b"no-rd-refine no-lossless cbqpoffs=0 crqpoffs=0 rc=crf crf=28.0 qcomp=0.60 qpstep=4 stats-write=0 stats-read=0 "
    b"ipratio=1.40 pbratio=1.30 aq-mode=2 aq-strength=1.00 cutree zone-count=0 no-strict-cbr qg-size=32 no-rc-grain "
    b"qpmax=69 qpmin=0 no-const-vbv sar=0 overscan=0 videoformat=5 range=0 colorprim=2 transfer=2 colormatrix=2 "
    b"chromaloc=0 display-window=0 cll=0,0 min-luma=0 max-luma=255 log2-max-poc-lsb=8 vui-timing-info vui-hrd-info "
    b"slices=1 no-opt-qp-pps no-opt-ref-list-length-pps no-multi-pass-opt-rps scenecut-bias=0.05 no-opt-cu-delta-qp "
    b"no-aq-motion no-hdr10 no-hdr10-opt no-dhdr10-opt no-idr-recovery-sei analysis-reuse-level=0 analysis-save- "
    b"reuse-level=0 analysis-load-reuse-level=0 scale-factor=0 refine-intra=0 refine-inter=0 refine-mv=1 refine-ctu- "
    b"distortion=0 no-limit-sao ctu-info=0 no-lowpass-dct refine-analysis-type=0 copy-pic=1 max-ausize-factor=1.0 "
    b"no-dynamic-refine no-single-sei no-hevc-aq no-svt no-field qp-adaptation-range=1.00 scenecut-aware- "
    b"qp=0conformance-window-offsets right=0 bottom=0 decoder-max-rate=0 no-vbv-live-multi-pass no-mcstf no-sbrc no- "
    b"frame-rc"
)
_FACTS = (
    b'"","",0,"attachment","data","subtitle","bin_data",[1,1000],"mpegaudio","flac","alac","pcm_s16le","s16p","s16","s32",'
    b'"vorbis","opus","mp3",[1,44100],"stereo","mono","5.1","audio",1,"aac","LC",[1,48000],0,"",0,false,false,0,0,"",0,'
    b'null,false,48000,2,"stereo","fltp"]["avi","ogg","wav","mp3","matroska,webm","mpegts","mov,mp4,m4a,3gp,3g2,mj2",'
    b'"vp8","Profile 0","vp9","Main","av1","Constrained Baseline","Main","hevc",[1,90000],[30000,1001],[24000,1001],'
    b'[25,1],"yuv420p10le","yuvj420p","libdav1d","mp3float","mp4a","mp4v","hvc1","hev1","av01","vp09","avc1",[[2,0,2,2],[1,1,1,1],"bt709",'
    b'"bt601",false,[["video",0,"h264","High",[1,15360],0,null,false,false,1280,720,1920,1080,320,240,"yuv420p",8,[30,1],'
    b'false,0,0,"","",""],0,0,'
)

DICTIONARY = _X265_NOTE + _FACTS
