package messenger

// Header flags of our own, sent only to peers that offered featureArgonaut;
// Ceph uses the lowest three bits.
const (
	flagCall  = 1 << 5 // the sender waits for a reply with this tid
	flagReply = 1 << 6 // answers the call with this tid
)
