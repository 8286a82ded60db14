package messenger

// What the tests outside of the package take from those inside.

const CheckedBuild = checkedBuild

var (
	Secured   = secured
	SecureAll = secureAll
)
