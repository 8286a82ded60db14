//go:build !linux

// Command memory shows what registered memory costs, on Linux.
package main

import "fmt"

func main() { fmt.Println("memory: Linux only: it pins pages") }
