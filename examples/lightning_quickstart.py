"""Train an autoencoder of number series with Lightning, and use it.

Everything is as with torch's DataLoader but for the line that imports it.
"""

import lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from fastfeed import DataLoader


class AutoEncoder(lightning.LightningModule):
    """Squeezes a series of 32 numbers into 3 and makes it again from them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 32))

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return how far the series made again are from the ones given."""
        (series,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(series)), series)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """Log the loss of a batch."""
        self.log("validation", self.loss(batch))

    def predict_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the three numbers of each series."""
        return self.encoder(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def waves(count: int) -> TensorDataset:
    """Return sine waves of random height, length and phase."""
    draw = torch.Generator().manual_seed(1)
    height, length, phase = torch.rand(3, count, 1, generator=draw)
    return TensorDataset(height * torch.sin(torch.arange(32) * (0.1 + length / 4) + 6 * phase))


def main() -> None:
    """Fit, and encode a few waves."""
    lightning.seed_everything(0)
    training, validation = random_split(waves(2048), [1792, 256])
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = AutoEncoder()
    trainer.fit(
        model,
        DataLoader(training, batch_size=64, shuffle=True, num_workers=2),
        DataLoader(validation, batch_size=64, num_workers=2),
    )
    print(f"validation loss {trainer.callback_metrics['validation'].item():.4f}")
    codes = trainer.predict(model, DataLoader(validation, batch_size=64, num_workers=2))
    print(f"{sum(map(len, codes))} waves encoded in {codes[0].shape[1]} numbers each")


if __name__ == "__main__":
    main()
