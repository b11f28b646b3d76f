"""The smallest training loop that keeps the contract of objectives: forward, loss, optimiser step, commit."""

import io

import torch

from fewtags.objectives.base import Progress


class ContractLoop:
    """Trains `self.method` on `self.net`; checkpoints go through a file.

    A subclass sets `net`, `method`, `parts`, `optimizer`, `epochs` and `steps`, and defines `batch()`; `predictions()`
    too, if a method needs them.
    """

    def begin(self):
        self.epoch = self.step = 0
        self.losses, self.diagnostics = [], []

    def at(self):
        return Progress(self.epoch, self.step, self.steps, lr=0.05)

    def run(self, stop_after=None):
        """Train to the end, or for a number of steps; the losses so far are in `losses`."""
        while self.epoch < self.epochs and stop_after != 0:
            if self.step == 0:
                if self.method.needs_predictions(self.epoch):
                    self.method.on_predictions(self.epoch, self.predictions())
                self.diagnostics.append(dict(self.method.on_epoch_start(self.epoch)))
            self.train(self.batch())
            self.step += 1
            if self.step == self.steps:
                self.epoch, self.step = self.epoch + 1, 0
            stop_after = None if stop_after is None else stop_after - 1
        return self

    def train(self, batch):
        out = self.method.step(self.net, batch, self.at())
        if not out.loss.isfinite():
            raise FloatingPointError
        self.optimizer.zero_grad()
        self.losses.append(self.backward(out.loss, batch))
        self.optimizer.step()
        self.method.commit(self.net, batch, out)

    def backward(self, loss, _batch):
        """Compute the gradients; returns the loss to record."""
        loss.backward()
        return loss.item()

    def state(self):
        parts = {name: dict(part.state_dict()) for name, part in self.parts.items()}
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "parts": parts}

    def save(self):
        file = io.BytesIO()
        torch.save(self.state() | {"epoch": self.epoch, "step": self.step}, file)
        return file.getvalue()

    def load(self, saved):
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        assert state["parts"].keys() == self.parts.keys()
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.epoch, self.step = state["epoch"], state["step"]
        return self

    def parts_now(self):
        """A copy of the state of all parts."""
        return {
            (name, key): value.clone() for name, part in self.parts.items() for key, value in part.state_dict().items()
        }


def assert_same(one, two):
    """Two nested states are equal bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two)
    else:
        assert one == two
