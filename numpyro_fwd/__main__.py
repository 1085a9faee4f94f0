"""``python -m numpyro_fwd`` runs the demonstration."""

from numpyro_fwd.demo.command import main

if __name__ == "__main__":
    main()
