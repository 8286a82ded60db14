//go:build !race && !invariants

package messenger

const checkedBuild = false
