package msgr2

// A message frame is the only one that is not a Frame: its data segment is
// payload that does not pass through this package. Its other parts are
// appended in wire order with the data between the two halves:
//
//	AppendMessageHead:  preamble, header, crc, front, middle
//	                    (data: dataLen bytes, written by the caller)
//	AppendMessageTail:  epilogue

// AppendMessageHead appends what precedes the data, and returns the epilogue,
// complete but for the checksum of the data.
func AppendMessageHead(dst []byte, h *Header, front, middle []byte, dataLen int) ([]byte, Preamble, Epilogue) {
	p := MessagePreamble(len(front), len(middle), dataLen)
	dst = p.Append(dst)
	at := len(dst)
	dst = h.Append(dst)
	dst = le.AppendUint32(dst, CRC(CRCSeed, dst[at:]))
	dst = append(dst, front...)
	dst = append(dst, middle...)

	var e Epilogue
	if p.Num > SegFront {
		e.CRC[0] = CRC(CRCSeed, front)
	}
	if p.Num > SegMiddle {
		e.CRC[1] = CRC(CRCSeed, middle)
	}
	return dst, p, e
}

// AppendMessageTail appends the epilogue when the frame has one. dataCRC is
// the checksum of the data from CRCSeed; it does not matter when there is none.
func AppendMessageTail(dst []byte, p *Preamble, e Epilogue, dataCRC uint32) []byte {
	if p.Num == 1 {
		return dst
	}
	if p.Num > SegData {
		e.CRC[2] = dataCRC
	}
	return e.Append(dst)
}

// Abort makes the epilogue that AppendMessageTail has appended, tail, that of a
// frame that its sender aborts: what the segments are does not matter any more.
func Abort(tail []byte) { tail[0] = lateAborted }
