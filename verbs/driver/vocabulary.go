package driver

import "strconv"

// Opcode is the operation of a work request or of a work completion.
type Opcode uint8

// Operations of work requests (ibv_wr_opcode) and, from OpRecv on, those that
// only completions carry (ibv_wc_opcode).
const (
	OpSend            Opcode = iota // SEND
	OpSendWithImm                   // SEND_WITH_IMM
	OpSendWithInv                   // SEND_WITH_INV: InvalidateRKey is invalidated at the peer
	OpWrite                         // RDMA_WRITE
	OpWriteWithImm                  // RDMA_WRITE_WITH_IMM: consumes a receive at the peer
	OpRead                          // RDMA_READ
	OpCompareSwap                   // ATOMIC_CMP_AND_SWP on 8 bytes
	OpFetchAdd                      // ATOMIC_FETCH_AND_ADD on 8 bytes
	OpBindMW                        // BIND_MW, type 2
	OpLocalInvalidate               // LOCAL_INV of a window's key
	OpRecv                          // RECV (completions only)
	OpRecvWriteImm                  // RECV_RDMA_WITH_IMM (completions only)

	opCount
)

var opcodeNames = [opCount]string{
	"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "BIND_MW", "LOCAL_INV", "RECV", "RECV_RDMA_WITH_IMM",
}

func (o Opcode) String() string { return name(opcodeNames[:], int(o)) }

// WCStatus is the status of a work completion, with the values of ibv_wc_status.
type WCStatus uint8

const (
	StatusSuccess        WCStatus = iota
	StatusLocLenErr               // local length error: a receive too small, a message too long
	StatusLocQPOpErr              // local QP operation error
	StatusLocEECOpErr             // local EE context operation error (RD only)
	StatusLocProtErr              // local protection error: an SGE does not name valid memory
	StatusWRFlushErr              // the QP went to ERR before the request was executed
	StatusMWBindErr               // memory window bind error
	StatusBadRespErr              // bad response
	StatusLocAccessErr            // local access error
	StatusRemInvReqErr            // remote invalid request
	StatusRemAccessErr            // remote access error
	StatusRemOpErr                // remote operation error
	StatusRetryExcErr             // transport retry counter exceeded: the peer does not answer
	StatusRNRRetryExcErr          // receiver-not-ready retry counter exceeded
	StatusLocRDDViolErr           // (RD only)
	StatusRemInvRDReqErr          // (RD only)
	StatusRemAbortErr             // remote aborted
	StatusInvEECNErr              // (RD only)
	StatusInvEECStateErr          // (RD only)
	StatusFatalErr                // fatal error of the device
	StatusRespTimeoutErr          // response timeout
	StatusGeneralErr              // general error; rxe, siw: it could not be sent, for want of a route, or because the connection is gone

	statusCount
)

// StatusCount is how many statuses there are.
const StatusCount = int(statusCount)

var statusNames = [statusCount]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
	"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
	"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
	"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
}

func (s WCStatus) String() string { return name(statusNames[:], int(s)) }

// QPState is the state of a queue pair, with the values of ibv_qp_state.
type QPState uint8

const (
	QPStateReset QPState = iota // RESET
	QPStateInit                 // INIT: receives may be posted
	QPStateRTR                  // RTR: ready to receive
	QPStateRTS                  // RTS: ready to send
	QPStateSQD                  // SQD: send queue drained
	QPStateSQE                  // SQE: send queue error (UC and UD)
	QPStateErr                  // ERR: everything outstanding is flushed

	qpStateCount
)

var qpStateNames = [qpStateCount]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string { return name(qpStateNames[:], int(s)) }

// Access is a set of access rights of a memory region or window, with the
// values of ibv_access_flags. Local read is always granted.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << iota // receives, READ sinks and atomic results may land here
	AccessRemoteWrite                     // the peer may WRITE; needs AccessLocalWrite
	AccessRemoteRead                      // the peer may READ
	AccessRemoteAtomic                    // the peer may use atomics; needs AccessLocalWrite
	AccessMWBind                          // windows may be bound to the region
	AccessZeroBased                       // addresses count from 0 at the start of the region
	AccessOnDemand                        // on-demand paging: nothing is pinned

	accessCount = iota
)

var accessNames = [accessCount]string{
	"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED", "ON_DEMAND",
}

// AccessRemote is every right that a peer can use.
const AccessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

func (a Access) String() string { return flags(accessNames[:], uint32(a)) }

// SendFlags modify a send work request, with the values of ibv_send_flags.
type SendFlags uint8

const (
	SendFence     SendFlags = 1 << iota // wait for READs and atomics posted before
	SendSignaled                        // make a completion on success too
	SendSolicited                       // raise a solicited event at the receiver
	SendInline                          // copy the data out of the SGEs at post time
	SendDeferred                        // begin with a later request, or at Doorbell; ours, not of ibv_send_flags

	sendFlagCount = iota
)

var sendFlagNames = [sendFlagCount]string{"FENCE", "SIGNALED", "SOLICITED", "INLINE", "DEFERRED"}

func (f SendFlags) String() string { return flags(sendFlagNames[:], uint32(f)) }

// EventType is the kind of an asynchronous event.
type EventType uint8

// The asynchronous events of a device (ibv_event_type), and EventDisconnected,
// which is the connection manager's.
const (
	EventCQErr            EventType = iota // CQ overrun or failed; completions were lost
	EventQPFatal                           // QP went to ERR on a local fault
	EventQPReqErr                          // QP got an invalid request
	EventQPAccessErr                       // QP got a request that violates access rights
	EventCommEst                           // first packet came while in RTR
	EventSQDrained                         // send queue drained
	EventPathMig                           // path migrated
	EventPathMigErr                        // path migration failed
	EventDeviceFatal                       // device is unusable or was removed: its QPs are to be put to ERR
	EventPortActive                        // port came up
	EventPortErr                           // port went down
	EventLIDChange                         // port LID changed
	EventPKeyChange                        // P_Key table changed
	EventSMChange                          // subnet manager changed
	EventSRQErr                            // SRQ failed
	EventSRQLimitReached                   // SRQ fell below its limit
	EventQPLastWQEReached                  // QP on an SRQ took its last entry
	EventClientReregister                  // subnet manager asks to register again
	EventGIDChange                         // GID table changed
	EventDisconnected                      // the connection of a QP is gone, whichever side ended it

	eventCount
)

var eventNames = [eventCount]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
	"DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "DISCONNECTED",
}

func (e EventType) String() string { return name(eventNames[:], int(e)) }

// Transport is the family of wire protocols a device speaks. It decides what a
// remote fault looks like: see Caps.
type Transport uint8

const (
	TransportIWARP      Transport = iota // RDMAP over DDP over MPA over TCP
	TransportRoCE                        // RoCE v1 or v2
	TransportInfiniBand                  // InfiniBand

	transportCount
)

var transportNames = [transportCount]string{"iWARP", "RoCE", "InfiniBand"}

func (t Transport) String() string { return name(transportNames[:], int(t)) }

// name is names[i], or the number where there is no name.
func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// flags joins the names of the bits set in v; unknown bits print as one number.
func flags(names []string, v uint32) string {
	if v == 0 {
		return "0"
	}
	var s string
	for i, n := range names {
		if v&(1<<i) != 0 {
			s += "|" + n
			v &^= 1 << i
		}
	}
	if v != 0 {
		s += "|0x" + strconv.FormatUint(uint64(v), 16)
	}
	return s[1:]
}
