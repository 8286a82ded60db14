package msgr2

import "bytes"

// Banner is the first thing each side sends. The two words are a namespace of
// their own (protocol features), not the features of the idents.
//
//	"ceph v2\n" | le16 length | le64 supported | le64 required
type Banner struct {
	Supported, Required uint64
}

// Specification constants.
const (
	bannerMagic = "ceph v2\n"
	// BannerPrefixLen is the magic and the length word: what has to be read
	// before the length of the rest is known.
	BannerPrefixLen = len(bannerMagic) + 2
	// bannerPayloadLen is what is defined of the rest.
	bannerPayloadLen = 16
	// BannerLen is the length of a banner that this package sends.
	BannerLen = BannerPrefixLen + bannerPayloadLen

	// FeatureRevision1 is msgr 2.1, which this package requires.
	FeatureRevision1 uint64 = 1 << 0
	// FeatureCompression is on-wire compression, which it never offers.
	FeatureCompression uint64 = 1 << 1
)

// MaxBannerPayload bounds what a peer may announce behind the prefix.
const MaxBannerPayload = 1 << 10

// Append appends the encoded banner.
func (b Banner) Append(dst []byte) []byte {
	dst = append(dst, bannerMagic...)
	dst = le.AppendUint16(dst, bannerPayloadLen)
	dst = le.AppendUint64(dst, b.Supported)
	return le.AppendUint64(dst, b.Required)
}

// DecodeBannerPrefix checks the first BannerPrefixLen bytes and returns how
// many bytes follow. A peer that speaks something else is told apart here.
func DecodeBannerPrefix(p []byte) (int, error) {
	if len(p) < BannerPrefixLen {
		return 0, decodeErr("banner", ErrTruncated, "%d bytes", len(p))
	}
	if bytes.HasPrefix(p, []byte("MPA ID Re")) {
		return 0, decodeErr("banner", ErrMalformed, "peer speaks iWARP, this is a byte stream: it has tcp:// for iwarp://, or the other way round")
	}
	if !bytes.HasPrefix(p, []byte(bannerMagic)) {
		return 0, decodeErr("banner", ErrMalformed, "peer does not speak msgr v2: it sent %q", p[:BannerPrefixLen])
	}
	n := int(le.Uint16(p[len(bannerMagic):]))
	if n < bannerPayloadLen {
		return 0, decodeErr("banner", ErrMalformed, "payload of %d bytes, at least %d needed", n, bannerPayloadLen)
	}
	if n > MaxBannerPayload {
		return 0, decodeErr("banner", ErrTooLarge, "payload of %d bytes, at most %d accepted", n, MaxBannerPayload)
	}
	return n, nil
}

// Decode decodes a whole banner, prefix included. What follows the two words
// is for later versions and ignored.
func (b *Banner) Decode(p []byte) error {
	n, err := DecodeBannerPrefix(p)
	if err != nil {
		return err
	}
	if len(p) < BannerPrefixLen+n {
		return decodeErr("banner", ErrTruncated, "%d bytes of %d", len(p), BannerPrefixLen+n)
	}
	r := reader{p: p[BannerPrefixLen:]}
	b.Supported, b.Required = r.u64(), r.u64()
	return r.fail("banner")
}
