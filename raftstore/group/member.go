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

// Nowhere is the address that a member gets in the configuration for the moment in which another
// one gets its old address and its new one is still that other's: an address stands there once.
// Nothing answers to it.
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
