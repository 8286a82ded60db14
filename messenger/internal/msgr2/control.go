package msgr2

// Frame is the payload of a control frame: all but MESSAGE.
type Frame interface {
	Tag() Tag
	// Append appends the encoded payload, without preamble and checksum.
	Append(dst []byte) []byte
	// Decode decodes a payload whose checksum was right. It borrows p.
	Decode(p []byte) error
}

// AppendControl appends a whole control frame: preamble, payload, checksum.
func AppendControl(dst []byte, f Frame) []byte {
	at := len(dst)
	var zero [PreambleLen]byte
	dst = append(dst, zero[:]...)
	dst = f.Append(dst)
	n := len(dst) - at - PreambleLen
	p := ControlPreamble(f.Tag(), n)
	p.Append(dst[at:at])
	if n > 0 {
		dst = le.AppendUint32(dst, CRC(CRCSeed, dst[at+PreambleLen:]))
	}
	return dst
}

// New returns an empty frame for a control tag, nil for MESSAGE and for
// unknown tags.
func New(t Tag) Frame {
	switch t {
	case TagHello:
		return new(Hello)
	case TagAuthRequest:
		return new(AuthRequest)
	case TagAuthBadMethod:
		return new(AuthBadMethod)
	case TagAuthReplyMore:
		return new(AuthReplyMore)
	case TagAuthRequestMore:
		return new(AuthRequestMore)
	case TagAuthDone:
		return new(AuthDone)
	case TagAuthSignature:
		return new(AuthSignature)
	case TagClientIdent:
		return new(ClientIdent)
	case TagServerIdent:
		return new(ServerIdent)
	case TagIdentMissingFeatures:
		return new(IdentMissingFeatures)
	case TagSessionReconnect:
		return new(SessionReconnect)
	case TagSessionReset:
		return new(SessionReset)
	case TagSessionRetry:
		return new(SessionRetry)
	case TagSessionRetryGlobal:
		return new(SessionRetryGlobal)
	case TagSessionReconnectOK:
		return new(SessionReconnectOK)
	case TagWait:
		return new(Wait)
	case TagKeepalive2:
		return new(Keepalive2)
	case TagKeepalive2Ack:
		return new(Keepalive2Ack)
	case TagAck:
		return new(Ack)
	case TagRefused:
		return new(Refused)
	}
	return nil
}
