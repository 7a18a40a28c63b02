"""Fit a curve with Accelerate: alone, or as `accelerate launch accelerate_quickstart.py`.

Everything is as with torch's DataLoader but for the line that imports it.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

from fastfeed import DataLoader


def points(count: int, seed: int) -> TensorDataset:
    """Return points on a curve, with a little noise."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=draw) * 4 - 2
    return TensorDataset(x, x**3 - x + 0.05 * torch.randn(count, 1, generator=draw))


def main() -> None:
    """Train, and measure on all processes together."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    training = DataLoader(points(2048, seed=0), batch_size=32, shuffle=True, num_workers=2)
    testing = DataLoader(points(500, seed=1), batch_size=32, num_workers=2)
    model, optimizer, training, testing = accelerator.prepare(model, optimizer, training, testing)

    for epoch in range(5):
        model.train()
        for x, y in training:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
        model.eval()
        errors = []
        with torch.no_grad():
            for x, y in testing:
                errors.append(accelerator.gather_for_metrics((model(x) - y) ** 2))
        every = torch.cat(errors)
        accelerator.print(f"epoch {epoch + 1}: error {every.mean():.3f} on {len(every)} points")
    accelerator.end_training()


if __name__ == "__main__":
    main()
