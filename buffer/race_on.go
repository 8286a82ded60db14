//go:build race

package buffer

const raceBuild = true
