//go:build !invariants

package fault

const checked = false
