package driver

// Doorbell is what a QP is too whose PostSend does the work of a device itself
// (Caps.Doorbell): what that costs need not fall due where requests are put in
// order, under a lock of the poster's.
type Doorbell interface {
	// Doorbell begins with what was posted SendDeferred, if nothing else has: a
	// request without the flag does, and so may the device at any time. It does not
	// block, and does nothing on a QP that is not in RTS.
	Doorbell()
}
