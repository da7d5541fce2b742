package clustertest

import (
	"slices"
	"testing"

	"github.com/barque/barque/cluster-test/runbook"
)

// unperformed returns the commands of a page that were not performed and that no other test
// performs, each as drill notes it.
func unperformed(book *runbook.Book, performed map[string]bool) (missing []string) {
	for _, s := range book.Sections {
		for _, c := range s.Commands {
			if !performed[s.Title+": "+c] && performedElsewhere[s.Title][c] == "" {
				missing = append(missing, s.Title+": "+c)
			}
		}
	}
	return missing
}

// performedElsewhere names the tests that perform commands of the page, by section, that are not
// among the stages of TestOperations. They use names, addresses and flags of their own.
var performedElsewhere = map[string]map[string]string{
	roomSection: {
		"barque cluster status":                  "TestFullStore, by the page",
		"barque kubectl delete configmap big-1":  "TestFullStore, TestFullDisk, by the page",
		"barque server --store-memory-limit 4Gi": "TestFullStore, by the page",
	},
	"Rotate the keys of gossip": {
		"barque cluster keys list":          "TestGossip, with -o json",
		"barque cluster keys rotate":        "TestGossip",
		"barque cluster keys rotate --undo": "TestUndo in membership/keyring; TestGossip has its refusals",
	},
	"Who sees whom": {
		"barque kubectl get --raw /barque/v1/gossip":               "TestGossip",
		"barque kubectl get --raw '/barque/v1/gossip?agents=true'": "TestGossip",
	},
	"What is wrong?": {
		"barque cluster status": "TestStatus, TestCommandsWithoutQuorum",
		"barque cluster doctor": "TestDoctor, with --output",
	},
	"Let a machine join": {
		"barque token create --role server":                                  "TestClusterJoin",
		"barque cluster join https://10.0.0.1:6443 --token-file /root/token": "TestClusterJoin, with --token",
	},
	"Certificates": {
		"barque cert show":               "TestCertificates, with -o json",
		"barque cert rotate":             "the chaos of a cluster: renew certificates",
		"barque cert rotate --server s2": "TestCertificates",
		"barque token create":            "TestTokens",
		"barque agent --rejoin --server https://10.0.0.1:6443 --token-file /etc/barque/token": "TestOperations, in another section",
	},
	"Exchange the CA": {
		"barque cert rotate --ca --yes":   "TestCertificates",
		"barque cert rotate --ca --joint": "TestCAsForEachPurpose in cmd/barque/node, by the request that it makes",
	},
	"Exchange the key of service accounts": {
		"barque cert rotate --service-accounts --yes": "TestCertificates",
	},
	"A CA of your own": {
		"barque server --ca-file chain.pem --ca-key-file ca.key":           "TestACompanysCA in cmd/barque/node",
		"barque cert rotate --ca --ca-file chain.pem --ca-key-file ca.key": "TestACompanysCA, by the request that it makes",
	},
}

// A command that is named as performed elsewhere is on the page, and a command without a test is
// found in such a section, too.
func TestCommandsPerformedElsewhere(t *testing.T) {
	book, err := runbook.Read(operationsPage)
	if err != nil {
		t.Fatal(err)
	}
	for title, commands := range performedElsewhere {
		s, err := book.Section(title)
		if err != nil {
			t.Error(err)
			continue
		}
		for c := range commands {
			if _, err := s.Find(c); err != nil {
				t.Error(err)
			}
		}
	}
	before := len(unperformed(book, nil))
	i := slices.IndexFunc(book.Sections, func(s runbook.Section) bool { return s.Title == "Certificates" })
	book.Sections[i].Commands = append(book.Sections[i].Commands, "barque cert burn")
	if missing := unperformed(book, nil); len(missing) != before+1 ||
		!slices.Contains(missing, "Certificates: barque cert burn") {
		t.Errorf("of a new command it is said that nobody performs %q", missing)
	}
}
