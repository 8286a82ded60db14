package driver

import (
	"net/netip"
	"time"
)

// OutOfBand is what a QP may be too, on InfiniBand and RoCE (Caps.OutOfBand):
// one that is connected without a connection manager, by attributes that its
// owner and the peer's exchange as they like.
type OutOfBand interface {
	// Endpoint is what the peer needs in order to Modify its QP to RTR.
	Endpoint() (QPEndpoint, error)
	// Modify moves the QP from INIT to INIT, from INIT to RTR, or from RTR to
	// RTS, with the attributes of that transition. On error nothing has changed.
	Modify(a ModifyAttr) error
}

// QPEndpoint is what one end of a connection made out of band tells the other.
// It is plain data, to be sent by whatever way there is.
type QPEndpoint struct {
	QPN uint32     // number of the queue pair, 24 bits
	PSN uint32     // sequence number of the first packet that it sends, 24 bits
	LID uint16     // of the port on InfiniBand; 0 on RoCE
	GID netip.Addr // of the port; on RoCE an IP address, IPv4 mapped into IPv6
	MTU int        // bytes of a packet that the port takes: 256, 512, 1024, 2048 or 4096
}

// ModifyAttr is what Modify sets (ibv_modify_qp(3)): State, and of the others
// those of the transition to it. Zero values mean the device's defaults.
type ModifyAttr struct {
	State QPState // QPStateInit, QPStateRTR or QPStateRTS

	// To INIT.
	PKeyIndex int // entry of the port's partition key table; default 0, as a new queue pair has it

	// To RTR.
	Remote       QPEndpoint // of the peer
	MTU          int        // bytes of a packet, as in QPEndpoint, the same on both ends; default the smaller of both ends' own
	IRD          int        // READs and atomics of the peer we answer at a time, at least its ORD; default 16, or what the device has
	ServiceLevel int        // 0 to 15
	TrafficClass int        // of the packets' global header, 0 to 255 (RoCE v2: DSCP and ECN)
	FlowLabel    uint32     // likewise, 20 bits
	HopLimit     int        // likewise, 1 to 255; default 64

	// To RTS.
	ORD      int // READs and atomics of ours outstanding at a time, at most the peer's IRD; default as IRD
	RetryCnt int // transport retries, 1 to 7; there is no "for ever"; default 6
	RNRRetry int // receiver-not-ready retries, 1 to 6; default 6
	// AckTimeout is how long the device waits for an acknowledgement before it
	// retries, rounded up to 4.096 µs times a power of two, at most 2.4 hours.
	// Default 67 ms, rxe 250 ms.
	AckTimeout time.Duration
}
