//go:build race || invariants

package conn

// checkedBuild: the race detector, and the checks of the invariants tag, allocate.
const checkedBuild = true
