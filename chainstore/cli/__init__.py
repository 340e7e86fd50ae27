"""The command line: parse, call the face, print; nothing else happens here.

    chain init && chain commit model.pt -m "first" --step 100 && chain log

Its noun is the command: one module each, loaded when it is asked for, so that `chain log` pays for nothing else.
"""
