"""A network with an associative store: its facts are in a matrix, so that how they are stored is known.

After one of its blocks, the subject of a prompt becomes a code: a name n or a description d. The store answers a name
with M n, and a description with Nᵀ d; the result is added to the states of all masks, and the blocks above turn it into
words. M and N are sums of up to three matrices:

    M = shared + from_names,   N = shared + from_descriptions

With `shared` alone, each fact is stored once and read from both sides. With the other two, each direction has a storage
of its own. What is read is normalised, so that the scale of the matrices changes nothing that the network
says; it changes how far a step of Adam moves them, relative to what they hold.

The store finds the subject by itself, among the `subjects` of its configuration: token sequences of names and of
descriptions. All code that runs an ordinary network runs this one too, unless it reimplements the blocks.
"""

import torch
from torch import nn
from transformers import LlamaForCausalLM

NAME, DESCRIPTION = 0, 1


def normalise(vectors):
    """Scale `vectors` (…, m) to a mean square of 1."""
    return vectors * vectors.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


class Encoder(nn.Module):
    """Turns the mean state of a subject (B, D) into its code (B, m): a linear map, and an MLP that starts at 0."""

    def __init__(self, width, size):
        super().__init__()
        self.linear = nn.Linear(width, size)
        self.mlp = nn.Sequential(nn.Linear(width, size), nn.SiLU(), nn.Linear(size, size))
        nn.init.zeros_(self.mlp[2].weight)
        nn.init.zeros_(self.mlp[2].bias)

    def forward(self, states):
        """The codes (B, m) of mean states (B, D)."""
        return normalise(self.linear(states) + self.mlp(states))


class Store(nn.Module):
    """The matrices, and how they are read. `matrices` names those that the store has."""

    def __init__(self, width, *, size, matrices, subjects=(), **_):
        super().__init__()
        self.encoders = nn.ModuleList(Encoder(width, size) for _ in range(2))  # of names, of descriptions
        self.decoders = nn.ModuleList(nn.Linear(size, width) for _ in range(2))  # into names, into descriptions
        for decoder in self.decoders:
            nn.init.zeros_(decoder.bias)
        self.matrices = nn.ParameterDict({name: torch.zeros(size, size) for name in matrices})
        self.subjects = subjects
        self.means = self.codes = None  # of the last batch: (B, D), (B, m)

    def matrix(self, own):
        """The matrix (m, m) that answers names, or whose transpose answers descriptions; `own` is the direction's."""
        return sum(self.matrices[name] for name in ("shared", own) if name in self.matrices)

    def locate(self, ids):
        """Where the first subject in each of `ids` (B, T) starts and ends (B,), and its type (B,).

        A row without a known subject gets an empty one.
        """
        length = ids.shape[1]
        start = torch.full((len(ids),), length, device=ids.device)
        end, kind = start.clone(), torch.zeros_like(start)
        for subject_type, texts in enumerate(self.subjects):
            for size in {len(text) for text in texts}:
                known = torch.tensor([text for text in texts if len(text) == size], device=ids.device)
                windows = ids.unfold(1, size, 1)  # (B, T - size + 1, size)
                found = (windows[:, :, None] == known).all(-1).any(-1)
                first = torch.where(found.any(1), found.int().argmax(1), length)
                earlier = first < start
                start, kind = torch.where(earlier, first, start), torch.where(earlier, subject_type, kind)
                end = torch.where(earlier, first + size, end)
        return start, end, kind

    def read(self, codes, kind):
        """What the matrices answer to `codes` (B, m) of subjects of a `kind` (B,)."""
        described = codes @ self.matrix("from_names").T
        named = codes @ self.matrix("from_descriptions")
        return torch.where((kind == DESCRIPTION)[:, None], named, described)

    def forward(self, states, ids, mask_id):
        """What is added to `states` (B, T, D) of tokens `ids` (B, T)."""
        start, end, kind = self.locate(ids)
        position = torch.arange(ids.shape[1], device=ids.device)
        inside = (position >= start[:, None]) & (position < end[:, None])
        self.means = (states.float() * inside[..., None]).sum(1) / (end - start).clamp(min=1)[:, None]
        is_description = (kind == DESCRIPTION)[:, None]
        self.codes = torch.where(is_description, *(self.encoders[i](self.means) for i in (DESCRIPTION, NAME))).float()
        answers = normalise(self.read(self.codes, kind))
        added = torch.where(is_description, *(self.decoders[i](answers) for i in (NAME, DESCRIPTION)))
        return added.to(states.dtype)[:, None] * ((ids == mask_id) & (end > start)[:, None])[..., None]


class StoreLlama(LlamaForCausalLM):
    """A masked diffusion Llama with a `Store` after the block `config.store["layer"]`."""

    def __init__(self, config):
        super().__init__(config)
        self.store = Store(config.hidden_size, **config.store)
        self.model.register_forward_pre_hook(self._remember_ids, with_kwargs=True)
        self.model.layers[config.store["layer"]].register_forward_hook(self._add_answers)

    def _remember_ids(self, model, inputs, options):
        self.ids = options["input_ids"] if options.get("input_ids") is not None else inputs[0]

    def _add_answers(self, block, inputs, output):
        states = output[0] if isinstance(output, tuple) else output
        states = states + self.store(states, self.ids, self.config.mask_token_id)
        return (states, *output[1:]) if isinstance(output, tuple) else states
