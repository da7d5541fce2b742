package answerbody

import "testing"

func TestReason(t *testing.T) {
	for body, want := range map[string][2]string{
		`{"kind":"Status","message":"no leader","code":503}`: {"no leader", ""},
		"it is the certificate with which you ask\n":         {"", "it is the certificate with which you ask"},
		`{"was":false}`:             {},
		`{"kind":"Status","code":4`: {},
		"<html>502</html>":          {},
		" \n":                       {},
		"":                          {},
	} {
		status, text := Reason([]byte(body))
		message := ""
		if status != nil {
			message = status.Message
		}
		if got := [2]string{message, text}; got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}
