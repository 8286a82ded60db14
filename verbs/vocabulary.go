package verbs

import "github.com/argonaut-rdma/argonaut/verbs/driver"

// The plain-data vocabulary is package driver's.
type (
	Opcode    = driver.Opcode
	WCStatus  = driver.WCStatus
	WC        = driver.WC
	Caps      = driver.Caps
	Access    = driver.Access
	SendFlags = driver.SendFlags
	QPState   = driver.QPState
	ConnParam = driver.ConnParam
	EventType = driver.EventType
	Features  = driver.Features
	Transport = driver.Transport

	QPEndpoint = driver.QPEndpoint
	ModifyAttr = driver.ModifyAttr
)

// Operations; see package driver.
const (
	OpSend            = driver.OpSend
	OpSendWithImm     = driver.OpSendWithImm
	OpSendWithInv     = driver.OpSendWithInv
	OpWrite           = driver.OpWrite
	OpWriteWithImm    = driver.OpWriteWithImm
	OpRead            = driver.OpRead
	OpCompareSwap     = driver.OpCompareSwap
	OpFetchAdd        = driver.OpFetchAdd
	OpBindMW          = driver.OpBindMW
	OpLocalInvalidate = driver.OpLocalInvalidate
	OpRecv            = driver.OpRecv
	OpRecvWriteImm    = driver.OpRecvWriteImm
)

// Statuses of completions; see package driver for the rare ones.
const (
	StatusSuccess        = driver.StatusSuccess
	StatusLocLenErr      = driver.StatusLocLenErr
	StatusLocQPOpErr     = driver.StatusLocQPOpErr
	StatusLocProtErr     = driver.StatusLocProtErr
	StatusWRFlushErr     = driver.StatusWRFlushErr
	StatusMWBindErr      = driver.StatusMWBindErr
	StatusBadRespErr     = driver.StatusBadRespErr
	StatusLocAccessErr   = driver.StatusLocAccessErr
	StatusRemInvReqErr   = driver.StatusRemInvReqErr
	StatusRemAccessErr   = driver.StatusRemAccessErr
	StatusRemOpErr       = driver.StatusRemOpErr
	StatusRetryExcErr    = driver.StatusRetryExcErr
	StatusRNRRetryExcErr = driver.StatusRNRRetryExcErr
	StatusRemAbortErr    = driver.StatusRemAbortErr
	StatusFatalErr       = driver.StatusFatalErr
	StatusRespTimeoutErr = driver.StatusRespTimeoutErr
	StatusGeneralErr     = driver.StatusGeneralErr
)

// States of a QP.
const (
	QPStateReset = driver.QPStateReset
	QPStateInit  = driver.QPStateInit
	QPStateRTR   = driver.QPStateRTR
	QPStateRTS   = driver.QPStateRTS
	QPStateSQD   = driver.QPStateSQD
	QPStateSQE   = driver.QPStateSQE
	QPStateErr   = driver.QPStateErr
)

// Access rights of memory regions and windows.
const (
	AccessLocalWrite   = driver.AccessLocalWrite
	AccessRemoteWrite  = driver.AccessRemoteWrite
	AccessRemoteRead   = driver.AccessRemoteRead
	AccessRemoteAtomic = driver.AccessRemoteAtomic
	AccessMWBind       = driver.AccessMWBind
	AccessZeroBased    = driver.AccessZeroBased
	AccessOnDemand     = driver.AccessOnDemand
	AccessRemote       = driver.AccessRemote
)

// Flags of send requests.
const (
	SendFence     = driver.SendFence
	SendSignaled  = driver.SendSignaled
	SendSolicited = driver.SendSolicited
	SendInline    = driver.SendInline
	SendDeferred  = driver.SendDeferred
)

// Asynchronous events.
const (
	EventCQErr            = driver.EventCQErr
	EventQPFatal          = driver.EventQPFatal
	EventQPReqErr         = driver.EventQPReqErr
	EventQPAccessErr      = driver.EventQPAccessErr
	EventCommEst          = driver.EventCommEst
	EventSQDrained        = driver.EventSQDrained
	EventPathMig          = driver.EventPathMig
	EventPathMigErr       = driver.EventPathMigErr
	EventDeviceFatal      = driver.EventDeviceFatal
	EventPortActive       = driver.EventPortActive
	EventPortErr          = driver.EventPortErr
	EventLIDChange        = driver.EventLIDChange
	EventPKeyChange       = driver.EventPKeyChange
	EventSMChange         = driver.EventSMChange
	EventSRQErr           = driver.EventSRQErr
	EventSRQLimitReached  = driver.EventSRQLimitReached
	EventQPLastWQEReached = driver.EventQPLastWQEReached
	EventClientReregister = driver.EventClientReregister
	EventGIDChange        = driver.EventGIDChange
	EventDisconnected     = driver.EventDisconnected
)

// Transports.
const (
	TransportIWARP      = driver.TransportIWARP
	TransportRoCE       = driver.TransportRoCE
	TransportInfiniBand = driver.TransportInfiniBand
)
