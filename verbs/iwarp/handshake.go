package iwarp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// maxPrivate is what MPA leaves to the user: 512 bytes less the enhanced prefix and our trailer.
const maxPrivate = wire.MaxPrivateData - wire.EnhancedLen - wire.ExtensionLen

// mssDefault is the segment size where the path's is not known: Ethernet's with TCP timestamps.
const mssDefault = 1448

// hello is a decoded MPA request or reply.
type hello struct {
	frame   wire.MPAFrame
	enh     wire.Enhanced
	ext     wire.Extension
	ours    bool // ext is there
	private []byte
}

// appendHello encodes a request or reply.
func appendHello(h *hello) []byte {
	f := h.frame
	f.PrivateDataLen = len(h.private)
	if f.Enhanced {
		f.PrivateDataLen += wire.EnhancedLen
	}
	if h.ours {
		f.PrivateDataLen += wire.ExtensionLen
	}
	b := wire.AppendMPA(make([]byte, 0, wire.MPAHeaderLen+f.PrivateDataLen), f)
	if f.Enhanced {
		b = wire.AppendEnhanced(b, h.enh)
	}
	b = append(b, h.private...)
	if h.ours {
		b = wire.AppendExtension(b, len(h.private), h.ext)
	}
	return b
}

// closedByPeer says whether an error of a connection that we have not closed means that the peer has.
func closedByPeer(err error) bool {
	return err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

func errNoReply(err error) error {
	return fmt.Errorf("%w: the peer closed the connection instead of a reply: %w", driver.ErrRefused, err)
}

// readHello reads exactly one request or reply: what follows it is the receiver's. A frame that no peer may send is
// refused before its private data is read.
func (d *Device) readHello(c net.Conn, reply bool) (*hello, error) {
	var fixed [wire.MPAHeaderLen]byte
	if _, err := io.ReadFull(c, fixed[:]); err != nil {
		if reply && closedByPeer(err) {
			return nil, errNoReply(err)
		}
		return nil, fmt.Errorf("iwarp: MPA handshake: %w", err)
	}
	f, err := wire.DecodeMPA(fixed[:], reply)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrProtocol, err)
	}
	if f.Markers && !f.Reject {
		return nil, fmt.Errorf("iwarp: %w: the peer wants MPA markers, which this device does not make", driver.ErrProtocol)
	}
	h := &hello{frame: f, private: make([]byte, f.PrivateDataLen)}
	if _, err := io.ReadFull(c, h.private); err != nil {
		return nil, fmt.Errorf("iwarp: MPA private data: %w", err)
	}
	if f.Enhanced {
		if h.enh, err = wire.DecodeEnhanced(h.private); err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrProtocol, err)
		}
		h.private = h.private[wire.EnhancedLen:]
	}
	h.private, h.ext, h.ours = wire.DecodeExtension(h.private)
	h.ours = h.ours && !d.cfg.Strict
	return h, nil
}

// offer is our trailer.
func (d *Device) offer() wire.Extension {
	return wire.Extension{Jumbo: true, Ops7306: true, WaiveCRC: d.cfg.CRC != CRCOn, MaxULPDU: wire.MaxJumboULPDU}
}

// negotiate works out the connection's parameters from the two frames, of which peer is the other side's.
func (d *Device) negotiate(c net.Conn, mine, peer *hello, initiator bool) connParams {
	p := connParams{initiator: initiator, framing: wire.Standard, crc: mine.frame.CRC || peer.frame.CRC}
	p.ours = mine.ours && peer.ours
	if p.ours && mine.ext.WaiveCRC && peer.ext.WaiveCRC {
		p.crc = false
	}
	if p.ours && mine.ext.Jumbo && peer.ext.Jumbo {
		p.framing = wire.Jumbo
		seg := d.cfg.SegmentSize
		if p.crc {
			seg = min(seg, segmentCRC)
		}
		p.maxULPDU = max(min(wire.UntaggedLen+seg, int(peer.ext.MaxULPDU)), wire.UntaggedLen+segmentMin)
	} else {
		p.maxULPDU = ulpduFor(maxSegment(c))
	}
	p.ird, p.ord = int(mine.enh.IRD), int(mine.enh.ORD)
	if mine.frame.Enhanced && peer.frame.Enhanced {
		p.ord = min(p.ord, int(peer.enh.IRD))
	}
	return p
}

// ulpduFor is the longest ULPDU whose FPDU fits one TCP segment (RFC 5044 section 4.2 without markers), in multiples
// of eight.
func ulpduFor(mss int) int {
	if mss <= 0 {
		mss = mssDefault
	}
	fpdu := mss &^ 3
	return min(max(fpdu-int(wire.Standard)-wire.CRCLen, 128)&^7, wire.MaxULPDU)
}

// depths are the IRD and ORD of a connection: at least 1, since 0 has crashed peers.
func (d *Device) depths(p *driver.ConnParam) (ird, ord int, err error) {
	if p.IRD < 0 || p.IRD > d.cfg.MaxIRD || p.ORD < 0 || p.ORD > d.cfg.MaxORD {
		return 0, 0, fmt.Errorf("iwarp: IRD %d, ORD %d: %w: at most %d and %d", p.IRD, p.ORD, driver.ErrInvalid, d.cfg.MaxIRD, d.cfg.MaxORD)
	}
	if len(p.PrivateData) > maxPrivate {
		return 0, 0, fmt.Errorf("iwarp: private data of %d bytes: %w: at most %d", len(p.PrivateData), driver.ErrInvalid, maxPrivate)
	}
	ird, ord = p.IRD, p.ORD
	if ird == 0 {
		ird = d.cfg.MaxIRD
	}
	if ord == 0 {
		ord = d.cfg.MaxORD
	}
	return max(ird, 1), max(ord, 1), nil
}

var errOldPeer = errors.New("iwarp: the peer refuses MPA revision 2")
