package msgr2

import "strconv"

// Tag is the type of a frame.
type Tag uint8

// The frames of msgr v2.1.
const (
	TagHello Tag = iota + 1
	TagAuthRequest
	TagAuthBadMethod
	TagAuthReplyMore
	TagAuthRequestMore
	TagAuthDone
	TagAuthSignature
	TagClientIdent
	TagServerIdent
	TagIdentMissingFeatures
	TagSessionReconnect
	TagSessionReset
	TagSessionRetry
	TagSessionRetryGlobal
	TagSessionReconnectOK
	TagWait
	TagMessage
	TagKeepalive2
	TagKeepalive2Ack
	TagAck

	// TagRefused is this project's own, see Refused.
	TagRefused Tag = 0x60
)

var tagNames = [...]string{
	TagHello:                "HELLO",
	TagAuthRequest:          "AUTH_REQUEST",
	TagAuthBadMethod:        "AUTH_BAD_METHOD",
	TagAuthReplyMore:        "AUTH_REPLY_MORE",
	TagAuthRequestMore:      "AUTH_REQUEST_MORE",
	TagAuthDone:             "AUTH_DONE",
	TagAuthSignature:        "AUTH_SIGNATURE",
	TagClientIdent:          "CLIENT_IDENT",
	TagServerIdent:          "SERVER_IDENT",
	TagIdentMissingFeatures: "IDENT_MISSING_FEATURES",
	TagSessionReconnect:     "SESSION_RECONNECT",
	TagSessionReset:         "SESSION_RESET",
	TagSessionRetry:         "SESSION_RETRY",
	TagSessionRetryGlobal:   "SESSION_RETRY_GLOBAL",
	TagSessionReconnectOK:   "SESSION_RECONNECT_OK",
	TagWait:                 "WAIT",
	TagMessage:              "MESSAGE",
	TagKeepalive2:           "KEEPALIVE2",
	TagKeepalive2Ack:        "KEEPALIVE2_ACK",
	TagAck:                  "ACK",
	TagRefused:              "REFUSED",
}

func (t Tag) String() string {
	if t.Valid() {
		return tagNames[t]
	}
	return "tag " + strconv.Itoa(int(t))
}

// Valid reports whether t is one of msgr v2.1's tags, or our own.
func (t Tag) Valid() bool { return t >= TagHello && t <= TagAck || t == TagRefused }
