"""Train a small network on shapes it draws itself, in plain PyTorch.

Everything is as with torch's DataLoader but for the line that imports it.
"""

import torch
from torch import nn
from torch.utils.data import Dataset

from fastfeed import DataLoader


class Shapes(Dataset):
    """Squares and crosses at random places of a noisy picture; the label says which."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draw = torch.Generator().manual_seed(self.seed + index)
        picture = torch.rand(1, 28, 28, generator=draw) * 0.3
        top, left = torch.randint(2, 16, (2,), generator=draw).tolist()
        label = index % 2
        shape = torch.ones(10, 10)
        if label:
            shape = torch.eye(10) + torch.eye(10).flip(0)
        picture[0, top : top + 10, left : left + 10] += shape
        return picture, label


def make_model() -> nn.Module:
    """Return a network of two layers of convolution."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """Run one epoch and return the loss of its last batch."""
    model.train()
    loss = torch.tensor(0.0)
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> float:
    """Return the share of pictures that are told right."""
    model.eval()
    right = 0
    for pictures, labels in loader:
        right += (model(pictures).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    """Train three epochs and say how well it went."""
    torch.manual_seed(0)
    training = DataLoader(Shapes(1024, seed=0), batch_size=64, shuffle=True, num_workers=2)
    testing = DataLoader(Shapes(256, seed=1 << 20), batch_size=64, num_workers=2)
    model = make_model()
    model(next(iter(testing))[0])  # the lazy layer learns its size
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        loss = train(model, training, optimizer)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, {test(model, testing):.0%} right")


if __name__ == "__main__":
    main()
