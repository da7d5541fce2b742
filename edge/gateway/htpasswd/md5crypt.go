package htpasswd

import (
	"crypto/md5"
	"strings"
)

const crypt64 = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// md5Crypt hashes a password as a hash of htpasswd says, $apr1$SALT$… or $1$SALT$…. It is what
// htpasswd writes by default, so users of basic authentication have it.
func md5Crypt(hash, password string) string {
	fields := strings.SplitN(hash, "$", 4)
	if len(fields) != 4 {
		return ""
	}
	magic, salt := "$"+fields[1]+"$", fields[2]
	salt = salt[:min(len(salt), 8)]
	inner := md5.Sum([]byte(password + salt + password))
	var b strings.Builder
	b.WriteString(password + magic + salt)
	for n := len(password); n > 0; n -= md5.Size {
		b.Write(inner[:min(n, md5.Size)])
	}
	for n := len(password); n > 0; n >>= 1 {
		if n&1 == 1 {
			b.WriteByte(0)
		} else {
			b.WriteByte(password[0])
		}
	}
	sum := md5.Sum([]byte(b.String()))
	for i := range 1000 {
		var round strings.Builder
		one := func(odd bool) {
			if odd {
				round.WriteString(password)
			} else {
				round.Write(sum[:])
			}
		}
		one(i&1 == 1)
		if i%3 != 0 {
			round.WriteString(salt)
		}
		if i%7 != 0 {
			round.WriteString(password)
		}
		one(i&1 == 0)
		sum = md5.Sum([]byte(round.String()))
	}
	out := []byte(magic + salt + "$")
	add := func(a, b, c byte, n int) {
		v := uint(a)<<16 | uint(b)<<8 | uint(c)
		for range n {
			out = append(out, crypt64[v&0x3f])
			v >>= 6
		}
	}
	for i := range 5 {
		last := i + 12
		if last == 16 {
			last = 5
		}
		add(sum[i], sum[i+6], sum[last], 4)
	}
	add(0, 0, sum[11], 2)
	return string(out)
}
