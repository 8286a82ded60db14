//go:build !invariants && !race

package main

const allocating = false
