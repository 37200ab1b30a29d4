"""What tests of several files share; imported as `shared`."""
