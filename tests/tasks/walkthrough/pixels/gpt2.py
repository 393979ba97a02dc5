import torch
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(embed_dim)
        self.ln_2 = nn.LayerNorm(embed_dim)
        self.attention = nn.MultiheadAttention(embed_dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(embed_dim, 2 * embed_dim), nn.GELU(), nn.Linear(2 * embed_dim, embed_dim))

    def forward(self, x):
        later = torch.full((len(x), len(x)), float("-inf"), device=x.device).triu(1)
        normed = self.ln_1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, embed_dim, num_heads, num_layers, num_positions, num_vocab, num_classes):
        super().__init__()
        self.sos = nn.Parameter(torch.randn(embed_dim) * 0.02)
        self.token_embeddings = nn.Embedding(num_vocab, embed_dim)
        self.position_embeddings = nn.Embedding(num_positions, embed_dim)
        self.layers = nn.ModuleList(Layer(embed_dim, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_vocab, bias=False)
        self.clf_head = nn.Linear(embed_dim, num_classes)

    def forward(self, x, classify=False):
        length, batch = x.shape
        h = torch.cat([self.sos.expand(1, batch, -1), self.token_embeddings(x[:-1])])
        h = h + self.position_embeddings.weight[:length, None]
        for layer in self.layers:
            h = layer(h)
        h = self.ln_f(h)
        logits = self.head(h)
        return (self.clf_head(h.mean(dim=0)), logits) if classify else logits
