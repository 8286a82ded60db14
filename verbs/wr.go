package verbs

// SGE is one piece of memory of a work request. It names its region, not a raw
// key, so that memory that has been deregistered is refused at post time.
type SGE struct {
	MR     *MR
	Offset uint64 // bytes from the start of MR
	Length uint32 // bytes
}

// SendWR is a request on the send queue.
//
// A request without SendSignaled makes no completion when it succeeds; it is
// over once a later completion of the same queue has been polled, unless it is
// a READ or an atomic, whose end only a completion of its own tells. One in
// every MaxSendWR requests or more has to be signalled by the caller if it
// wants to know.
type SendWR struct {
	WRID   uint64 // the caller's, returned in WC and Orphan
	Opcode Opcode // not OpBindMW: see QP.BindMW
	Flags  SendFlags
	SGEs   []SGE // borrowed until PostSend returns

	RemoteAddr     uint64 // WRITE, READ, atomics
	RKey           uint32 // WRITE, READ, atomics
	Imm            uint32 // *_WITH_IMM, host order
	InvalidateRKey uint32 // SEND_WITH_INV: the peer's key; LOCAL_INV: a window of ours
	CompareAdd     uint64 // ATOMIC_CMP_AND_SWP: compare; ATOMIC_FETCH_AND_ADD: add
	Swap           uint64 // ATOMIC_CMP_AND_SWP
}

// RecvWR is a request on a receive queue or SRQ.
type RecvWR struct {
	WRID uint64 // the caller's, returned in WC and Orphan
	SGEs []SGE  // borrowed until PostRecv returns; none for zero-length messages only
}

// Orphan is a request that a destroyed queue will never complete. What it
// referenced is the caller's again.
type Orphan struct {
	WRID uint64
	Recv bool // of the receive queue
}
