package revocations

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/adminapi/remote/users"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/revocation"
)

func listOf() []users.Info {
	end := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	return []users.Info{
		{Name: "ann", Serial: "abc", Expires: end, By: "barque:admin", Groups: []string{"barque:admins"}},
		{Name: "ann", Serial: "0d", Expires: end, By: "ann"},
		{Name: "bob", Serial: "e", Expires: end, By: "ann", Groups: []string{"dev"}},
		{Name: "eve", Serial: "f", Expires: end, By: "ann", Revoked: "it is revoked"},
	}
}

// TestOrdersByTheList: a serial number of the list is completed by it, as the list shows it and as
// openssl does. A name that is not on it may be a wrong one.
func TestOrdersByTheList(t *testing.T) {
	for what, c := range map[string]struct {
		args   []string
		serial string
		force  bool
		want   revocation.Order
		says   string
		code   int
	}{
		"a name":      {args: []string{"ann"}, want: revocation.Order{User: "ann"}},
		"a wrong one": {args: []string{"anne"}, says: "--force", code: exitcode.Refused},
		"forced":      {args: []string{"anne"}, force: true, want: revocation.Order{User: "anne", Force: true}},
		"a serial": {serial: "abc",
			want: revocation.Order{Serial: "0abc", Name: "ann", Until: listOf()[0].Expires}},
		"as openssl has": {serial: "0A:BC",
			want: revocation.Order{Serial: "0abc", Name: "ann", Until: listOf()[0].Expires}},
		"an unknown one":   {serial: "77", says: "barque cert revoke --serial", code: exitcode.Usage},
		"neither":          {says: "either"},
		"an empty name":    {args: []string{""}, says: "either"},
		"a name and a one": {args: []string{"ann"}, serial: "abc", says: "either"},
		"two names":        {args: []string{"ann", "bob"}, says: "want one NAME"},
	} {
		got, err := userOrder(c.args, c.serial)
		if err == nil {
			got.Force = c.force
			got, err = onList(got, listOf())
		}
		switch {
		case c.says != "":
			var coded *exitcode.Error
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.As(err, &coded) != (c.code != 0) ||
				coded != nil && coded.Code != c.code {
				t.Errorf("%s: %v", what, err)
			}
		case err != nil || got != c.want:
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}

// TestLeft: the administrator hears of the certificates that count further.
func TestLeft(t *testing.T) {
	for what, c := range map[string]struct {
		made revocation.Entry
		want []string
	}{
		"all of a user": {revocation.Entry{Kind: revocation.User, Name: "ann"}, []string{"user revoke bob"}},
		"one of two": {revocation.Entry{Kind: revocation.Certificate, Name: "ann", ID: "0abc"},
			[]string{"another certificate, 0d", "user revoke bob"}},
		"of another": {revocation.Entry{Kind: revocation.User, Name: "bob"}, nil},
	} {
		lines := left(c.made, listOf())
		if !slices.EqualFunc(lines, c.want, strings.Contains) {
			t.Errorf("%s: %q", what, lines)
		}
	}
}

// TestUsersAreListed: with their states.
func TestUsersAreListed(t *testing.T) {
	var out strings.Builder
	if err := writeUsers(&out, listOf()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[1], "ann\tbarque:admins\tvalid\t") || !strings.Contains(lines[4], "eve\t-\trevoked\t") {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	err := write(&out,
		[]revocation.Entry{{Kind: revocation.User, Name: "ann", Revision: 7},
			{Kind: revocation.Certificate, Name: "bob", ID: "0a"}})
	if err != nil || !strings.Contains(out.String(), "user\tann\tissued up to revision 7") ||
		!strings.Contains(out.String(), "certificate\tbob\t0a\t") {
		t.Errorf("%s, %v", out.String(), err)
	}
}
