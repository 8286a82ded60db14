//go:build ibverbs && linux && cgo

package ibverbs

import (
	"math"
	"os"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// Software devices that do less than they claim are known by their IDs.
const (
	vendorRXE = 0xffffff
	vendorSIW = 0x626d74
)

// What the connection manager carries, in bytes. RoCE and InfiniBand: 92 of the
// REQ message less its own header of 36. iWARP: the length is one byte, to which
// siw adds the 4 bytes of the MPA v2 word without looking.
const (
	privateDataIB    = 56
	privateDataIWARP = 251
)

// maxInlineProbed is the largest inline size that is tried, in bytes. Above it
// copying costs more than the device's fetch.
const maxInlineProbed = 1024

// maxRdAtomic bounds IRD and ORD, which are bytes on the wire and where 255 has
// a meaning of its own.
const maxRdAtomic = 128

func (d *device) queryCaps() error {
	a, err := d.ctx.QueryDevice()
	if err != nil {
		return opErr("ibv_query_device_ex", err)
	}
	p, err := d.ctx.QueryPort(d.port)
	if err != nil {
		return opErr("ibv_query_port", err)
	}

	d.attr = a
	rxe, siw := d.rxe(), d.siw()
	iwarp := d.ctx.Transport() == cverbs.TransportIWARP
	c := &d.caps
	*c = driver.Caps{
		Name:           d.ctx.Name(),
		Provider:       "ibverbs",
		MaxQP:          a.MaxQP,
		MaxCQ:          a.MaxCQ,
		MaxMR:          a.MaxMR,
		MaxMW:          a.MaxMW,
		MaxSRQ:         a.MaxSRQ,
		MaxPD:          a.MaxPD,
		MaxCQE:         a.MaxCQE,
		MaxQPWR:        a.MaxQPWR,
		MaxSRQWR:       a.MaxSRQWR,
		MaxSGE:         a.MaxSGE,
		MaxReadSGE:     a.MaxSGERead,
		MaxSRQSGE:      a.MaxSRQSGE,
		MaxIRD:         min(a.MaxQPRdAtom, maxRdAtomic),
		MaxORD:         min(a.MaxQPInitRdAtom, maxRdAtomic),
		MaxPrivateData: privateDataIB,
		MaxMRSize:      a.MaxMRSize,
		MaxMsgSize:     uint64(p.MaxMsgSz),
		PageSize:       os.Getpagesize(),

		MW2:       a.CapFlags&(cverbs.CapMWType2A|cverbs.CapMWType2B) != 0 && a.MaxMW > 0,
		Atomics:   a.AtomicCap != cverbs.AtomicNone,
		Imm:       !iwarp,
		SendInv:   a.CapFlags&cverbs.CapMemMgtExtensions != 0 && !siw, // siw takes the key from the wrong field
		ODP:       odp(a),
		SRQ:       a.MaxSRQ > 0,
		SRQLimit:  a.MaxSRQ > 0,
		Solicited: !siw, // it takes no receive for solicited
		LastWQE:   !iwarp && !rxe,
		RNRRetry:  !iwarp,
		OutOfBand: !iwarp,
		Pins:      true,

		DeregBarrier:             !siw,
		ReadSinkNeedsRemoteWrite: iwarp && !siw,
		InOrderCompletions:       !siw, // it completes a SEND before an earlier READ
		RemoteReadChecked:        !siw,
		RemoteViolationOnWR:      !iwarp,
		FlushCompletes:           !siw, // it forgets a READ whose response is cut off
		UnsentIsLocQPOp:          rxe || siw,
		ErrPostCompletesSQ:       !iwarp,
		ErrPostCompletesRQ:       !iwarp && !rxe,
	}
	c.MWConfines = c.MW2 && !rxe // it checks the bounds of the region, and copies a packet after the window has gone
	d.wcInv = cverbs.WCFlagInv
	if rxe {
		d.wcInv |= cverbs.WCFlagIPCsum // it passes on the kernel's number, which is that of another flag here
	}
	switch {
	case iwarp:
		c.Transport = driver.TransportIWARP
		c.MaxPrivateData = privateDataIWARP
	case p.LinkLayer == cverbs.LinkLayerEthernet:
		c.Transport = driver.TransportRoCE
	default:
		c.Transport = driver.TransportInfiniBand
	}
	if siw {
		c.MaxQPWR /= 2       // see fitSIW
		c.SignalAbove = 4096 // unsignalled payload is given to TCP by page and may be read later
	}
	if c.MaxReadSGE <= 0 {
		c.MaxReadSGE = c.MaxSGE
	}
	c.MaxMRSize = min(c.MaxMRSize, math.MaxInt64)
	if c.MaxInline, err = d.probeInline(); err != nil {
		return err
	}
	c.Inline = c.MaxInline > 0
	return nil
}

// odp says whether SEND, RECV, WRITE and READ all take on-demand memory on a
// reliable connection.
func odp(a cverbs.DeviceAttr) bool {
	const all = cverbs.ODPSupportSend | cverbs.ODPSupportRecv | cverbs.ODPSupportWrite | cverbs.ODPSupportRead
	return a.ODPGeneralCaps&cverbs.ODPSupport != 0 && a.ODPRCCaps&all == all
}

// probeInline finds how much inline data a queue pair can have: no attribute
// says so, only creation does.
func (d *device) probeInline() (int, error) {
	pd, err := d.ctx.AllocPD()
	if err != nil {
		return 0, createErr("ibv_alloc_pd", err)
	}
	defer func() { _ = pd.Dealloc() }()
	cq, err := d.ctx.CreateCQ(2, cverbs.CompChannel{}, 0)
	if err != nil {
		return 0, createErr("ibv_create_cq", err)
	}
	defer func() { _ = cq.Destroy() }()
	const step = 8
	lo, hi := 0, maxInlineProbed/step+1 // lo works, hi does not or is not tried
	for lo+1 < hi {
		mid := (lo + hi) / 2
		qp, err := pd.CreateQP(&cverbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: mid * step,
		})
		if err != nil {
			hi = mid
			continue
		}
		if err := qp.Destroy(); err != nil {
			return 0, opErr("ibv_destroy_qp", err)
		}
		lo = mid
	}
	return lo * step, nil
}
