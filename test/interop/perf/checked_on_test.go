//go:build invariants || race

package main

// allocating: checked builds allocate.
const allocating = true
