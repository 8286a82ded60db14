package msgr2

import "strconv"

// AuthMethod is an authentication method.
type AuthMethod uint32

// Ceph's authentication methods.
const (
	AuthUnknown AuthMethod = 0
	AuthNone    AuthMethod = 1
	AuthCephx   AuthMethod = 2
	AuthKrb     AuthMethod = 4
)

// AuthTLS is this project's own: mutual TLS 1.3.
const AuthTLS AuthMethod = 0x41720001

func (m AuthMethod) String() string {
	switch m {
	case AuthUnknown:
		return "unknown"
	case AuthNone:
		return "none"
	case AuthCephx:
		return "cephx"
	case AuthKrb:
		return "krb"
	case AuthTLS:
		return "tls"
	}
	return "method" + strconv.FormatUint(uint64(m), 10)
}

// Mode is how frames are protected once authentication is done.
type Mode uint32

// Ceph's connection modes.
const (
	ModeCRC    Mode = 1
	ModeSecure Mode = 2
)

func (m Mode) String() string {
	switch m {
	case ModeCRC:
		return "crc"
	case ModeSecure:
		return "secure"
	}
	return "mode" + strconv.FormatUint(uint64(m), 10)
}

// AuthRequest opens authentication (client to server).
//
//	le32 method | le32 count, count x le32 preferred modes | le32 length, payload
type AuthRequest struct {
	Method  AuthMethod
	Modes   []uint32 // in order of preference
	Payload []byte
}

// Tag implements Frame.
func (*AuthRequest) Tag() Tag { return TagAuthRequest }

// Append implements Frame.
func (f *AuthRequest) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, uint32(f.Method))
	return appendBlob(appendU32s(dst, f.Modes), f.Payload)
}

// Decode implements Frame.
func (f *AuthRequest) Decode(p []byte) error {
	r := reader{p: p}
	f.Method = AuthMethod(r.u32())
	f.Modes, f.Payload = r.u32s(), r.blob()
	return r.fail("AUTH_REQUEST")
}
