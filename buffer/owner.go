package buffer

// Owner is an interned name for who holds buffers. It belongs to one arena.
type Owner uint32

const (
	// Anonymous is the owner of whoever names none. It has no quota.
	Anonymous Owner = 0
	// Control is the owner of control traffic: heartbeats, credits. It may use
	// the arena's Reserve when the rest is in use. It has no quota.
	Control Owner = 1
)

// Owner interns name and returns its owner, always the same for one name. quota
// is how many bytes it may hold, a slot counted at the size of its class; 0
// means no limit, and for an owner that exists no change. A smaller quota than
// what is held takes effect as buffers come back.
func (a *Arena) Owner(name string, quota int64) Owner { return 0 }

// OwnerName returns the name that o was made with.
func (a *Arena) OwnerName(o Owner) string { return "" }
