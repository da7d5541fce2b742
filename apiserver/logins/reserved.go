package logins

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/pagelogin"
)

// Reserved are the prefixes of the names of Kubernetes' and Barque's own users and groups. Their
// rights do not come from roles alone: system:masters may do everything, and servers trust each
// other by such names.
var Reserved = []string{"system:", "barque:"}

func isReserved(name string) bool {
	for _, prefix := range Reserved {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// fromOutside refuses a user that another system has named, and whose name or group is reserved. A
// provider that lets users choose their name would make them administrators otherwise. Every user
// that has logged in is in system:authenticated, so that group may be named.
func fromOutside(source string, who user.Info) error {
	if isReserved(who.GetName()) {
		return fmt.Errorf(
			"%s names the user %q: names that begin with %s are reserved; map it to another name, as with a prefix",
			source, who.GetName(), strings.Join(Reserved, " or "))
	}
	for _, g := range who.GetGroups() {
		if isReserved(g) && g != user.AllAuthenticated {
			return fmt.Errorf(
				"%s puts the user %q into the group %q: groups that begin with %s are reserved; map it to another group, and bind a role to that", source, who.GetName(), g, strings.Join(Reserved, " or "))
		}
	}
	for _, key := range []string{pagelogin.SessionExtra, pagelogin.LinkExtra} {
		if _, given := who.GetExtra()[key]; given {
			return fmt.Errorf("%s gives the user %q the extra field %s, which only this server gives: leave it out",
				source, who.GetName(), key)
		}
	}
	return nil
}

// fromFile refuses a user of a file on the server's disk that passes for a part of the cluster: a
// node, a controller, the scheduler, a service account. Administrators' groups are not refused,
// because a writer of the file has the server.
func fromFile(source string, who user.Info) error {
	if isReserved(who.GetName()) {
		return fmt.Errorf(
			"%s has the user %q: names that begin with %s are those of the cluster's own parts; take another name, and put it into a group or bind a role to it",
			source, who.GetName(), strings.Join(Reserved, " or "))
	}
	for _, g := range who.GetGroups() {
		if isReserved(g) &&
			!slices.Contains([]string{clusterusers.AdminGroup, user.SystemPrivilegedGroup, user.AllAuthenticated}, g) {
			return fmt.Errorf(
				"%s puts the user %q into the group %q: groups that begin with %s are those of the cluster's own parts; only %s and %s may be given",
				source, who.GetName(), g, strings.Join(Reserved, " or "), user.SystemPrivilegedGroup,
				clusterusers.AdminGroup)
		}
	}
	return nil
}

// checkedTokens checks the users of tokens.
type checkedTokens struct {
	next   authenticator.Token
	source string
	check  func(source string, who user.Info) error
}

// AuthenticateToken implements authenticator.Token.
func (c *checkedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return c.checked(c.next.AuthenticateToken(ctx, token))
}

func (c *checkedTokens) checked(
	response *authenticator.Response, ok bool, err error,
) (*authenticator.Response, bool, error) {
	if !ok || err != nil {
		return nil, false, err
	}
	if err := c.check(c.source, response.User); err != nil {
		return nil, false, err
	}
	return response, true, nil
}
