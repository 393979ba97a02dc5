#!/usr/bin/env bash
# Checks, tests and measures energon_dali on a GPU host, and leaves JSON, logs, charts and one report in one folder.
#
#   benchmarks/gpu.sh OUT_DIR [--stage NAME ...] [--device gpu|cpu] [--quick] [--work DIR]
#
#   --stage NAME ...   some of: doctor tests kernels images mixed video vision ranks profile growth
#                      (default: all, in this order)
#   --device cpu       a dry run without a GPU: shows that every stage runs; its figures say nothing of a GPU
#   --quick            small data and few repetitions: shows that it runs; its figures mean nothing
#   --work DIR         keep the copy of the code and the generated data there, for the next call;
#                      by default they are in OUT_DIR/work and are removed at the end
#
# Needs no installation of the package: Python is $PYTHON, else .venv/bin/python if it is complete, else python3, with
# what PYTHONPATH holds. If the code is a copy without its repository, COMMIT names its commit. Each stage ends after 8
# minutes at the latest. A stage that fails does not keep the others from running; the exit status is 1 if one failed.
# OUT_DIR/report.html is what to send to others: it has everything that matters of all stages whose results are in
# OUT_DIR, also of earlier calls. Nothing is written outside of OUT_DIR and --work.
set -euo pipefail

STAGES=(doctor tests kernels images mixed video vision ranks profile growth)
STAGE_SECONDS=480
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
  exit "$1"
}

refuse() {
  echo "gpu.sh: $1" >&2
  echo "Try: benchmarks/gpu.sh --help" >&2
  exit 2
}

parse() {
  out='' device=gpu quick='' work='' chosen=()
  while (($#)); do
    case $1 in
      -h | --help) usage 0 ;;
      --stage)
        shift
        while (($#)) && [[ $1 != --* ]] && is_stage "$1"; do
          chosen+=("$1")
          shift
        done
        ((${#chosen[@]})) || refuse "--stage ${1:-} names no stage; there are: ${STAGES[*]}."
        ;;
      --device)
        device=${2:-}
        [[ $device == gpu || $device == cpu ]] || refuse "--device '$device' is neither gpu nor cpu."
        shift 2
        ;;
      --work)
        work=${2:-}
        [[ -n $work ]] || refuse "--work needs a folder."
        shift 2
        ;;
      --quick) quick=1 && shift ;;
      --*) refuse "$1 is not an option." ;;
      *)
        [[ -z $out ]] || refuse "'$1' is too much: '$out' is the folder already, and the stages are: ${STAGES[*]}."
        out=$1
        shift
        ;;
    esac
  done
  [[ -n $out ]] || refuse "Give the folder for the results."
  ((${#chosen[@]})) || chosen=("${STAGES[@]}")
}

is_stage() {
  local one
  for one in "${STAGES[@]}"; do [[ $one == "$1" ]] && return 0; done
  return 1
}

find_python() {
  if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    # What a setup left that did not finish is passed over.
    if [[ -x $root/.venv/bin/python ]]; then
      if "$root/.venv/bin/python" -c 'import torch, pytest' 2>/dev/null; then
        PYTHON=$root/.venv/bin/python
      else
        echo "gpu.sh: .venv is not complete (no torch or no pytest): taking python3. Run make setup again." >&2
      fi
    fi
  fi
  local found
  found=$(command -v "$PYTHON") || refuse "There is no Python '$PYTHON'. Set PYTHON to one that has torch."
  [[ $found == /* ]] || found=$PWD/$found
  PYTHON=$found
}

# A copy in which kernels/ is where an installation puts it: as energon_dali.kernels.
copy_code() {
  tree=$work/tree
  mkdir -p "$tree"
  rm -rf "${tree:?}"/{energon_dali,tests,benchmarks,examples,pyproject.toml,COMMIT}
  tar -C "$root" --exclude=__pycache__ --exclude=benchmarks/results -cf - energon_dali kernels tests benchmarks \
    examples pyproject.toml | tar -C "$tree" -xf -
  rm -rf "$tree/energon_dali/kernels"
  mv "$tree/kernels" "$tree/energon_dali/kernels"
  commit=${COMMIT:-$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)}
  if [[ -z ${COMMIT:-} && -n $commit && -n $(git -C "$root" status --porcelain 2>/dev/null) ]]; then commit+=+; fi
  echo "$commit" >"$tree/COMMIT"
}

# Everything runs in the copy, and leaves its caches next to it.
enter() {
  export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
  export TRITON_CACHE_DIR="$work/triton" XDG_CACHE_HOME="$work/cache"
  if [[ -z ${ENERGON_PYTHON:-} && -x $root/.venv-energon/bin/python ]]; then
    export ENERGON_PYTHON=$root/.venv-energon/bin/python
  fi
  cd "$tree"
}

# What is ended from outside takes along what it started: timeout runs in a process group of its own.
bounded() {
  timeout --kill-after=20 "$STAGE_SECONDS" "$PYTHON" "$@" &
  # shellcheck disable=SC2064 # the id of this process, now
  trap "kill -TERM $! 2>/dev/null; wait; exit 143" INT TERM
  wait $!
}

chart() { # MODULE JSON PNG; a chart is a convenience: it fails nothing
  if [[ -s $2 ]] && "$PYTHON" -c 'import matplotlib' 2>/dev/null; then
    bounded -m "$1" "$2" "$3" || echo "No chart was drawn of $2."
  else
    echo "No chart: ${2##*/} or matplotlib is missing."
  fi
}

stage_doctor() { bounded -m energon_dali doctor --device "$device" --json "$out/$device-doctor.json"; }

stage_tests() {
  local what=(tests/gpu)
  if [[ $device == cpu ]]; then
    echo "Dry run: what tests/gpu can do on a CPU, and the kernels in Triton's interpreter."
    what+=(tests/kernels)
    [[ -n $quick ]] || export GPU_DRY_RUN=1
  else
    export FAIL_WITHOUT_CUDA=1
    what+=(-W default) # the host's versions are its own: what they warn of is shown, and fails nothing
  fi
  export GPU_OBSERVATIONS=$out/$device-observations.json # what the tests saw, for docs/gpu-evidence.md
  bounded -m pytest -p no:cacheprovider --basetemp "$work/pytest" --junitxml "$out/$device-tests.xml" "${what[@]}"
}

stage_kernels() {
  local status=0
  [[ $device == gpu ]] || export OMP_NUM_THREADS=1 # on a busy machine more threads wait for one another
  bounded -m benchmarks.kernels --device "$device" --json "$out/$device-kernels.json" ${quick:+--quick} || status=$?
  chart benchmarks.plot_kernels "$out/$device-kernels.json" "$out/$device-kernels.png"
  return "$status"
}

suite() { # SUITE STAGE PLOT
  local status=0 json=$out/$device-$2.json
  bounded -m benchmarks.run "$1" --device "$device" --json "$json" ${quick:+--quick} || status=$?
  chart "$3" "$json" "$out/$device-$2.png"
  return "$status"
}

stage_images() { suite gpu-images images benchmarks.plot; }

stage_mixed() { suite gpu-mixed mixed benchmarks.plot; }

stage_ranks() { suite gpu-ranks ranks benchmarks.plot; }

stage_video() { suite gpu-video video benchmarks.plot; }

stage_vision() { suite gpu-vision vision benchmarks.plot; }

stage_growth() { suite growth growth benchmarks.plot_growth; }

stage_profile() {
  bounded -m benchmarks.tuning --device "$device" --json "$out/$device-profile.json" ${quick:+--quick}
}

run_stage() { # prints the stage's line of the summary
  local began=$SECONDS status=0
  echo "== $1 (log: $out/$1.log)"
  ("stage_$1") >"$out/$1.log" 2>&1 &
  running=$!
  wait "$running" || status=$?
  running=
  tail -n 25 "$out/$1.log"
  ((status == 0)) || failed=1
  local note=ok
  ((status == 0)) || note="FAILED"
  ((status != 124 && status != 137)) || note="FAILED: stopped after $STAGE_SECONDS s"
  printf '%-8s %5d s  exit %3d  %s\n' "$1" $((SECONDS - began)) "$status" "$note" >>"$out/summary.txt"
}

main() {
  parse "$@"
  find_python
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  local keep=$work
  work=${work:-$out/work}
  mkdir -p "$work"
  work=$(cd "$work" && pwd)
  running=
  trap '[[ -z $running ]] || kill -TERM "$running"; wait; exit 143' INT TERM
  [[ -n $keep ]] || trap 'rm -rf "$work"' EXIT
  copy_code
  enter
  failed=0
  echo "device $device${quick:+, quick}, commit ${commit:-unknown}, $("$PYTHON" -V 2>&1)" | tee "$out/summary.txt"
  local stage
  for stage in "${chosen[@]}"; do run_stage "$stage"; done
  echo "== summary ($out/summary.txt)"
  cat "$out/summary.txt"
  # Also without matplotlib and after failures: the report says what failed.
  "$PYTHON" -m benchmarks.gpu_report "$out" --device "$device" || failed=1
  exit "$failed"
}

main "$@"
