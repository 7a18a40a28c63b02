"""What each library has to do, by library; every module is loaded only in its own process."""
