package frontproxy

import (
	"encoding/json"
	"slices"
)

// Trust is what the ConfigMap extension-apiserver-authentication says to extension API servers.
type Trust struct {
	ClientCAs []byte // of users, in PEM
	ProxyCAs  []byte // of those that name a user in headers
	Names     []string

	UserHeader, UIDHeader, GroupHeader, ExtraPrefix string
}

// With adds the CAs and the names of a proxy, which may be nil. Its headers are left out where they
// are others than those of servers: a server without the flags would pass on a header of such a
// name from anybody, and an extension API server would believe it.
func (t Trust) With(p *Proxy) Trust {
	t.ProxyCAs = slices.Concat(t.ProxyCAs, p.CAs())
	for _, name := range p.Names() {
		if !slices.Contains(t.Names, name) {
			t.Names = append(slices.Clone(t.Names), name)
		}
	}
	return t
}

// Data returns the content of the ConfigMap.
func (t Trust) Data() (map[string]string, error) {
	data := map[string]string{"client-ca-file": string(t.ClientCAs), "requestheader-client-ca-file": string(t.ProxyCAs)}
	for key, list := range map[string][]string{
		"requestheader-allowed-names":        t.Names,
		"requestheader-username-headers":     {t.UserHeader},
		"requestheader-uid-headers":          {t.UIDHeader},
		"requestheader-group-headers":        {t.GroupHeader},
		"requestheader-extra-headers-prefix": {t.ExtraPrefix},
	} {
		text, err := json.Marshal(list)
		if err != nil {
			return nil, err
		}
		data[key] = string(text)
	}
	return data, nil
}
