//go:build !race && !invariants

package conn

const checkedBuild = false
