"""The self-contained HTML page that `tilewright inspect` writes: what it shows (`data`), its pictures, and its frame."""
