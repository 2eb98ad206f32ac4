"""The version of lash."""

VERSION = "0.1.0"
