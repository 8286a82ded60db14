package verbs

// Event is an asynchronous event. The object that it is about is set; all nil
// means the device, or Port where that is not 0.
type Event struct {
	Type  EventType
	QP    *QP
	CQ    *CQ
	SRQ   *SRQ
	Port  int
	Count int // how many of this kind on this object it stands for, at least 1
}
