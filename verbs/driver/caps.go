package driver

// Caps says what a device has. A bit is set only where the feature works as the
// standard says; limits are those of the device, not of one object.
type Caps struct {
	Name      string    // device name: "iwarp", "rxe0", "mlx5_0"
	Provider  string    // "iwarp" or "ibverbs"
	Transport Transport // wire protocol family

	MaxQP, MaxCQ, MaxMR, MaxMW, MaxSRQ, MaxPD int // objects
	MaxCQE                                    int // entries of one CQ
	MaxQPWR, MaxSRQWR                         int // entries of one work queue
	MaxSGE                                    int // SGEs of a SEND, WRITE or RECV
	MaxReadSGE                                int // SGEs of a READ (1 on iWARP)
	MaxSRQSGE                                 int
	MaxInline                                 int // bytes
	MaxIRD, MaxORD                            int
	MaxPrivateData                            int // bytes of ConnParam.PrivateData that reach the peer
	MaxMRSize                                 uint64
	MaxMsgSize                                uint64 // bytes of one work request
	MaxPages                                  uint64 // translations of all regions; 0: no limit known
	PageSize                                  int    // bytes, of a translation

	MW2          bool // type 2 memory windows: AllocMW, OpBindMW, OpLocalInvalidate
	MWConfines   bool // a window gives no access outside its range, and none once its Dealloc returned (not so on rxe 6.1)
	ScopedKeys   bool // PD.RegScoped: a key for one range and one QP, in O(1)
	Atomics      bool // OpCompareSwap, OpFetchAdd; a connection may lack them still: see Features
	Imm          bool // OpSendWithImm, OpWriteWithImm; likewise
	SendInv      bool // OpSendWithInv
	ODP          bool // AccessOnDemand
	SRQ          bool
	SRQLimit     bool // EventSRQLimitReached
	Inline       bool
	Solicited    bool // CQ.ReqNotify(true) tells solicited completions apart; without it, all are announced
	LastWQE      bool // EventQPLastWQEReached is raised
	RNRRetry     bool // a missing receive is retried; without it, it ends the connection
	DeregBarrier bool // no remote access lands after Deregister returned (not so on siw)
	Doorbell     bool // PostSend does the device's work, and leaves what is SendDeferred to Doorbell
	OutOfBand    bool // queue pairs can be connected without a connection manager: Endpoint and Modify
	Pins         bool // registration pins pages and counts against RLIMIT_MEMLOCK

	ReadSinkNeedsRemoteWrite bool // the sink of a READ is a region with AccessRemoteWrite (iWARP hardware)
	InOrderCompletions       bool // send completions come in posting order across opcodes (not so on siw)
	SignalAbove              int  // requests of at least so many bytes must be signalled; 0: none
	RemoteReadChecked        bool // a peer can READ only with AccessRemoteRead (siw lets it read any region of the PD whose key it names)
	RemoteViolationOnWR      bool // a remote violation shows as a status of the work request; else the connection just ends
	FlushCompletes           bool // what is outstanding when a QP goes to ERR completes, all of it, once (siw forgets a READ that the end of the connection cuts off, which QP.Close returns, and may flush one twice)
	UnsentIsLocQPOp          bool // LOC_QP_OP_ERR of a send says that it could not be sent, for want of a route or of a connection (rxe, siw): Poll calls it GENERAL_ERR
	ErrPostCompletesSQ       bool // a send posted in ERR completes with WR_FLUSH_ERR
	ErrPostCompletesRQ       bool // a receive posted in ERR completes with WR_FLUSH_ERR
}
