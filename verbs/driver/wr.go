package driver

import "time"

// SGE is one piece of memory of a work request, by raw key.
type SGE struct {
	Addr   uint64 // address within the region named by LKey
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a request on the send queue.
type SendWR struct {
	WRID   uint64
	Opcode Opcode
	Flags  SendFlags
	SGEs   []SGE // borrowed until PostSend returns

	RemoteAddr     uint64 // WRITE, READ, atomics
	RKey           uint32 // WRITE, READ, atomics
	Imm            uint32 // *_WITH_IMM, in host order
	InvalidateRKey uint32 // SEND_WITH_INV (the peer's key), LOCAL_INV (ours)
	CompareAdd     uint64 // ATOMIC_CMP_AND_SWP: compare; ATOMIC_FETCH_AND_ADD: add
	Swap           uint64 // ATOMIC_CMP_AND_SWP

	Bind MWBind // BIND_MW
}

// MWBind is what a BIND_MW request binds.
type MWBind struct {
	MW     MW
	RKey   uint32 // the window's key from the completion of the bind on
	MR     MR     // region with AccessMWBind
	Addr   uint64 // within the region
	Length uint64 // bytes
	Access Access // remote rights of the window
}

// RecvWR is a request on a receive queue or SRQ.
type RecvWR struct {
	WRID uint64
	SGEs []SGE // borrowed until PostRecv returns
}

// WC is a work completion. With Status other than StatusSuccess only WRID,
// Status, QPN and VendorErr hold (ibv_poll_cq(3)).
type WC struct {
	WRID            uint64
	Status          WCStatus
	Opcode          Opcode // of sends perhaps that of one that does the same, or without immediate data or invalidation
	ByteLen         uint32 // bytes received, read, or 8 for an atomic
	Imm             uint32 // with HasImm
	InvalidatedRKey uint32 // with HasInv: our key that the peer's SEND_WITH_INV invalidated
	QPN             uint32
	VendorErr       uint32
	HasImm          bool
	HasInv          bool
}

// ConnParam is what two ends tell each other when they connect
// (rdma_conn_param). Zero values mean the device's defaults.
type ConnParam struct {
	PrivateData []byte // at most Caps.MaxPrivateData bytes; borrowed when given, the receiver's own when returned
	IRD         int    // READs and atomics of the peer we answer at a time
	ORD         int    // READs and atomics of ours outstanding at a time
	RetryCnt    int    // transport retries, 1 to 7 (RoCE, InfiniBand); there is no "for ever"
	RNRRetry    int    // receiver-not-ready retries, 1 to 6 (RoCE, InfiniBand)
	// AckTimeout is how long a RoCE or InfiniBand device waits for an
	// acknowledgement before it retries.
	AckTimeout time.Duration
}

// Event is an asynchronous event. The object that it is about is set; all nil
// means the device, or Port where that is not 0.
type Event struct {
	Type EventType
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port int
}
