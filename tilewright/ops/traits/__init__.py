"""Facts about operators beside what they compute: the traits (`facts`), what definitions tell of them (`derive`,
`pairing`), and how they are tried on arrays (`check`)."""
