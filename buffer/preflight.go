package buffer

import "github.com/argonaut-rdma/argonaut/verbs"

// Preflight says whether an arena of cfg can be attached to a device with these
// capabilities: enough regions, large enough, enough translations, and where
// registration pins, enough lockable memory. It takes nothing. Attach does the
// same. The error is ErrInvalid or a *LimitError, which names the exact number
// and what to do.
func Preflight(cfg Config, caps verbs.Caps) error { return ErrNotSupported }
