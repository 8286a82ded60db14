package messenger

import "github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"

// Bits of the banner's feature word. Ceph counts its own from 0 up; these are
// this project's, from 63 down, and mean nothing unless featureArgonaut is
// there too. See PROTOCOL.md.
const (
	// featureArgonaut: the header flags of our own, the extension behind the
	// front segment, and our address types.
	featureArgonaut uint64 = 1 << 63
	// featureGrants: pull and push frames on a stream.
	featureGrants uint64 = 1 << 62
	// featureNoDataCRC: the transport checks the payload, the epilogue's
	// checksum of it is 0 and not looked at.
	featureNoDataCRC uint64 = 1 << 61
	// featureOwnAuth: authentication methods that are not Ceph's.
	featureOwnAuth uint64 = 1 << 60
	// featurePushed: a push as a frame is answered.
	featurePushed uint64 = 1 << 59
	// featureFrames: pull and push frames on RDMA, for grants that say so.
	featureFrames uint64 = 1 << 58
	// featureRefusals: calls that will not be answered, and handshakes that are
	// refused, are told so, with the reason.
	featureRefusals uint64 = 1 << 57
	// featureLimits: HELLO says how large a message may be.
	featureLimits uint64 = 1 << 56
	// featureGaps: numbers of messages that are not sent are announced.
	featureGaps uint64 = 1 << 55

	ownFeatures = featureArgonaut | featureGrants | featureNoDataCRC | featureOwnAuth | featurePushed | featureFrames |
		featureRefusals | featureLimits | featureGaps
)

// Ceph's feature bits that the frames themselves need (Ceph: MSG_ADDR2 and
// SERVER_NAUTILUS): offered to every peer, asked of none. Payloads may need
// more, see Policy.Supported.
const (
	cephMsgAddr2       uint64 = 1 << 59
	cephServerNautilus uint64 = 1 << 61
	baseFeatures              = cephMsgAddr2 | cephServerNautilus
)

// negotiated returns the features of our own that both banners offer.
func negotiated(ours, theirs uint64) uint64 {
	both := ours & theirs & ownFeatures
	if both&featureArgonaut == 0 {
		return 0
	}
	return both
}

func offered(cfg *Config) uint64 {
	f := msgr2.FeatureRevision1 | featureArgonaut | featureGrants | featureOwnAuth | featurePushed | featureFrames |
		featureRefusals | featureLimits | featureGaps
	if cfg.NoDataCRC {
		f |= featureNoDataCRC
	}
	return f
}
