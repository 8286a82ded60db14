//go:build invariants

package fault

// checked: free memory is poisoned, and what is behind buffers is looked at.
const checked = true
