package verbs

import (
	"errors"
	"fmt"
	"math"
)

var errOnSRQ = fmt.Errorf("%w: the QP receives from an SRQ", ErrInvalid)

// checkSend says why a request may not be posted. wait is a region on which a
// Deregister is deciding just now. The QP's mu is held: a region found live here
// is counted before any Deregister sums.
func (q *QP) checkSend(wr *SendWR) (total uint64, wait *MR, err error) {
	caps := &q.dev.caps
	maxSGE := q.cfg.MaxSendSGE
	var need Access // of the region of each SGE
	remote := true
	feat := uint32(0)
	switch wr.Opcode {
	case OpSend:
		remote = false
	case OpSendWithImm:
		remote, feat = false, featImm
	case OpSendWithInv:
		remote, feat = false, featSendInv
	case OpWrite:
	case OpWriteWithImm:
		feat = featImm
	case OpRead:
		need = AccessLocalWrite
		if caps.ReadSinkNeedsRemoteWrite {
			need |= AccessRemoteWrite
		}
		if caps.MaxReadSGE > 0 {
			maxSGE = min(maxSGE, caps.MaxReadSGE)
		}
	case OpCompareSwap, OpFetchAdd:
		need, feat = AccessLocalWrite, featAtomics
	case OpBindMW:
		return 0, nil, fmt.Errorf("%w: BIND_MW is posted by QP.BindMW", ErrInvalid)
	default:
		return 0, nil, fmt.Errorf("%w: %v is not an operation of the send queue", ErrInvalid, wr.Opcode)
	}
	if feat != 0 && q.features.Load()&feat == 0 {
		return 0, nil, fmt.Errorf("%w: %v on this connection", ErrNotSupported, wr.Opcode)
	}
	if extra := wr.Flags &^ (SendFence | SendSignaled | SendSolicited | SendInline | SendDeferred); extra != 0 {
		return 0, nil, fmt.Errorf("%w: unknown send flags %v", ErrInvalid, extra)
	}
	inline := wr.Flags&SendInline != 0
	if inline && need != 0 {
		return 0, nil, fmt.Errorf("%w: inline %v", ErrInvalid, wr.Opcode)
	}
	if len(wr.SGEs) > maxSGE {
		return 0, nil, tooManySGEs(len(wr.SGEs), maxSGE)
	}
	for i := range wr.SGEs {
		if wait, err := q.pd.checkSGE(&wr.SGEs[i], need); wait != nil || err != nil {
			return 0, wait, sgeError(i, err)
		}
		total += uint64(wr.SGEs[i].Length)
	}
	switch {
	case inline && total > uint64(q.cfg.MaxInline):
		err = fmt.Errorf("%w: %d bytes inline, the QP takes %d", ErrInvalid, total, q.cfg.MaxInline)
	case total > math.MaxUint32 || caps.MaxMsgSize > 0 && total > caps.MaxMsgSize:
		err = fmt.Errorf("%w: a message of %d bytes, the device takes %d", ErrInvalid, total, caps.MaxMsgSize)
	case feat == featAtomics && (len(wr.SGEs) != 1 || total != 8):
		err = fmt.Errorf("%w: an atomic has one SGE of 8 bytes", ErrInvalid)
	case feat == featAtomics && wr.RemoteAddr%8 != 0:
		err = fmt.Errorf("%w: an atomic on the unaligned address 0x%x", ErrInvalid, wr.RemoteAddr)
	case remote && total > 0 && wr.RemoteAddr > math.MaxUint64-(total-1):
		err = fmt.Errorf("%w: [0x%x, +%d) wraps", ErrInvalid, wr.RemoteAddr, total)
	}
	return total, nil, err
}

// checkRecv says why a receive may not be posted; the queue's mu is held.
func checkRecv(pd *PD, sges []SGE, most int) (wait *MR, err error) {
	if len(sges) > most {
		return nil, tooManySGEs(len(sges), most)
	}
	var total uint64
	for i := range sges {
		if wait, err := pd.checkSGE(&sges[i], AccessLocalWrite); wait != nil || err != nil {
			return wait, sgeError(i, err)
		}
		total += uint64(sges[i].Length)
	}
	if total > math.MaxUint32 {
		return nil, fmt.Errorf("%w: a receive of %d bytes", ErrInvalid, total)
	}
	return nil, nil
}

var (
	errNoMR      = fmt.Errorf("%w: no MR", ErrInvalid)
	errOtherPD   = fmt.Errorf("%w: the MR is of another PD", ErrInvalid)
	errScopedMR  = fmt.Errorf("%w: a scoped key is for the peer only", ErrInvalid)
	errMRClosed  = fmt.Errorf("the MR is deregistered or being so: %w", ErrClosed)
	errOutside   = fmt.Errorf("%w: not within the MR", ErrInvalid)
	errNoWrite   = fmt.Errorf("%w: the MR has no LOCAL_WRITE", ErrInvalid)
	errNoRemote  = fmt.Errorf("%w: this device reads only into an MR with REMOTE_WRITE", ErrInvalid)
	errNotWindow = errors.New("no window bound to this QP has the key")
)

func (pd *PD) checkSGE(s *SGE, need Access) (wait *MR, err error) {
	m := s.MR
	switch {
	case m == nil:
		return nil, errNoMR
	case m.pd != pd:
		return nil, errOtherPD
	case m.scope != nil:
		return nil, errScopedMR
	case s.Offset > m.length || uint64(s.Length) > m.length-s.Offset:
		return nil, errOutside
	case need&^m.access != 0:
		if m.access&AccessLocalWrite == 0 {
			return nil, errNoWrite
		}
		return nil, errNoRemote
	}
	switch m.state.Load() {
	case mrLive:
		return nil, nil
	case mrChecking:
		return m, nil
	}
	return nil, errMRClosed
}

func sgeError(i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("SGE %d: %w", i, err)
}

func tooManySGEs(n, most int) error {
	return fmt.Errorf("%w: %d SGEs, at most %d are allowed", ErrInvalid, n, most)
}

func (q *QP) checkInvalidate(wr *SendWR) error {
	switch {
	case !q.dev.caps.MW2:
		return fmt.Errorf("%w: memory windows", ErrNotSupported)
	case len(wr.SGEs) > 0:
		return fmt.Errorf("%w: LOCAL_INV has no SGEs", ErrInvalid)
	case wr.Flags&^(SendFence|SendSignaled) != 0:
		return fmt.Errorf("%w: LOCAL_INV with flags %v", ErrInvalid, wr.Flags)
	}
	return nil
}

// boundLocked is the window of q that has the key; Device.mu is held.
func (q *QP) boundLocked(rkey uint32) (*MW, error) {
	w := q.pd.windows[rkey]
	if w == nil || w.qp != q || w.obj.phase != phaseLive {
		return nil, fmt.Errorf("%w: LOCAL_INV of 0x%x: %w", ErrInvalid, rkey, errNotWindow)
	}
	return w, nil
}
