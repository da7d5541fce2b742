package group

import "strings"

// Member is one server of the group.
type Member struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	Self    bool   `json:"self"`
}

// NameOf returns the name in a server's ID.
func NameOf(id string) string {
	if i := strings.LastIndexByte(id, '.'); i > 0 {
		return id[:i]
	}
	return id
}

// Nowhere is a member's address in the configuration while its new address still belongs to another
// member, to which its old address goes. An address appears only once there. No server answers at
// it.
func Nowhere(id string) string { return "moving." + id }

// Find returns the member with an ID.
func Find(members []Member, id string) (Member, bool) {
	for _, m := range members {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// Voters counts the members that vote.
func Voters(members []Member) int {
	voters := 0
	for _, m := range members {
		if m.Voter {
			voters++
		}
	}
	return voters
}
