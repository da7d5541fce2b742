package htpasswd

import "testing"

func TestMatches(t *testing.T) {
	for hash, want := range map[string]bool{
		"$apr1$lZL6V/ci$ovh07v8dWYKfXboAPvhHk1": true, "$1$abcdefgh$NhxzTbTEofBY3k210b95n1": true, // of openssl passwd
		"{SHA}3A28B+Bt8tLlCA9jcTE1DSq5cwQ=": false, "testing": false, "$apr1$": false, "": false, "$1$": false,
	} {
		if got := Matches(hash, "testing"); got != want {
			t.Errorf("%q: %v, want %v", hash, got, want)
		}
	}
	if !Matches("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "password") {
		t.Error("SHA")
	}
}
