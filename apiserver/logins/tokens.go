package logins

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// tokenLine describes a line of a file of static tokens.
const tokenLine = `token,user,uid and, in quotes, the groups: token,user,uid,"group1,group2"`

// checkTokens checks the lines of a file of static tokens: token,user,uid,"group,group". No error
// has a token in it.
func checkTokens(data []byte) error {
	lines := csv.NewReader(bytes.NewReader(data))
	lines.FieldsPerRecord = -1
	seen := map[string]int{} // line by token
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: want %s", err, tokenLine)
		}
		n, _ := lines.FieldPos(0)
		if len(fields) < 3 || fields[0] == "" || fields[1] == "" {
			return fmt.Errorf("line %d: want %s", n, tokenLine)
		}
		if first, twice := seen[fields[0]]; twice {
			return fmt.Errorf("line %d: it has the token of line %d: give each user a token of its own", n, first)
		}
		seen[fields[0]] = n
		who := user.DefaultInfo{Name: fields[1]}
		if len(fields) > 3 && fields[3] != "" {
			who.Groups = strings.Split(fields[3], ",")
		}
		if err := fromFile(fmt.Sprintf("line %d", n), &who); err != nil {
			return err
		}
	}
	if len(seen) == 0 {
		return errors.New("it has no token: want lines of " + tokenLine)
	}
	return nil
}
